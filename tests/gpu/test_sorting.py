"""Sorts in all ways: compared, by blocks, counted, selected and digit by digit; and rows that are put in the order of a sort, and back."""

import pytest
import torch
from torch import nn

import monotile
from monotile.config import Options

pytestmark = pytest.mark.gpu
OPTIONS = Options(cache=False)


class Sorted(nn.Module):
    def __init__(self, k: int | None = None) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, order = torch.sort(x, dim=1, stable=True, descending=True)
        return (values, order) if self.k is None else tuple(torch.topk(x, self.k))


class Grouped(nn.Module):
    """Rows in the order of their choices, and where each choice went, in both usual ways; `x` is what all choices give each row."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        order = torch.argsort(torch.topk(x, 4).indices.reshape(-1), stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(order.shape[0], device=x.device)
        rows = x[order // 4]
        return order, torch.argsort(order), rows, rows[place].reshape(-1, 4, x.shape[1]).sum(1)


def numbers(n: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randint(-50, 50, (2, n), device="cuda").to(dtype)
    if dtype.is_floating_point:
        x[0, ::9], x[1, ::7] = float("nan"), -0.0
    return x


def same(model: nn.Module, x: torch.Tensor) -> None:
    fast = monotile.compile(model, (x,), options=OPTIONS)
    for found, wanted in zip(fast(x), model(x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("count", [100, 2048, 5000, 40000])
def test_sorts(count: int, dtype: torch.dtype) -> None:
    same(Sorted(), numbers(count, dtype))


def test_small_sorts() -> None:
    torch.manual_seed(0)
    same(Sorted(), numbers(2048, torch.float16))
    same(Sorted(), numbers(16384, torch.float32))
    same(Sorted(300), torch.randperm(2 * 9000, device="cuda").reshape(2, -1).float())
    same(Grouped(), torch.randperm(600 * 32, device="cuda").reshape(-1, 32).float())
