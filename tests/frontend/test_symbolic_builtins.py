"""Numbers that Python makes of sizes which a call decides, and operators that take plain numbers only."""

import math
from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from monotile.compile import compile as compile_
from monotile.errors import InputError
from tests.frontend.sized import Over, Sized, check, same

BATCH, LENGTH = Dim("b", min=1, max=4), Dim("l", min=1, max=16)
SHAPES = {0: BATCH, 1: LENGTH}
SIZES = [(1, 1), (2, 1), (1, 4), (3, 9), (4, 16)]


def _args(b: int, n: int) -> tuple[Tensor, ...]:
    return (torch.randn(b, n, generator=torch.Generator().manual_seed(b + 7 * n)),)


class _Numbers(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        n = x.shape[1]
        return [
            x[:, : int(n)],
            x[:, : int(n / 2) + 1],
            x[:, : max(1, int(0.5 * n))],
            x[:, : min(int(n * 0.7) + 1, 3)],
            x[:, : round(n * 0.7) + 1],
            x[:, : math.floor(n * 0.5) + 1],
            x[:, : math.ceil(n * 0.5)],
            x[:, : int(math.sqrt(n))],
            x[:, : math.isqrt(n)],
            x[:, : int(n**0.5)].cumsum(1) * 2,
            x / math.sqrt(n),
            x / sqrt(n),
            x * float(n),
            x + int(n * 0.5),
            x * math.log(n + 1) + math.log(n + 1, 3),
            x * math.exp(-n / 4) + math.cos(n),
            x * math.ceil(math.log2(n)) + float(math.log10(n)),
            x / np.sqrt(n) + np.log(n + 1),
            x + divmod(n, 3)[0] * divmod(n, 3)[1],
            x.to(int) + torch.zeros(n, dtype=int).to(float),
            x + (1 if isinstance(int(n * 0.5), int) else 2),
        ]


def test_numbers_of_sizes() -> None:
    check(_Numbers(), _args, (SHAPES,), SIZES)
    assert int is int
    assert "int" not in globals()


def test_numbers_of_sizes_that_may_be_negative() -> None:
    """As where what is scaled up again is padded, or cropped, to what it was."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        more = x.shape[1] - 2 * (x.shape[1] // 2 + 1)
        y = x[:, ::2].repeat_interleave(2, 1)
        return F.pad(y, (more // 2, 1)), y.new_full((1,), more)

    check(Over(f), _args, (SHAPES,), SIZES)


def test_a_number_that_is_made_one() -> None:
    """An operator that takes a number only holds for the sizes that give it."""
    model = Over(lambda x: x.unfold(1, int(x.shape[1] * 0.5), 1))
    sized = Sized(model, _args(2, 8), (SHAPES,))
    same(sized(*_args(3, 9)), model(*_args(3, 9)))
    with pytest.raises(InputError, match=r"compiled for sizes with math.trunc\(.*\) == 4, which"):
        sized(*_args(3, 6))


def _by_sizes(x: Tensor) -> tuple[Tensor, ...]:
    """Indices that are sizes, beside others."""
    n, y = x.shape[1], x.T.clone()
    y[n // 2] = 5
    y[n - 1, 1:] = x[0, n // 3]
    y[n // 4, -1] *= 2
    return y, x[None, ..., n - 1], x[0][n // 2] + x[:1, n // 3, None]


OPERATORS: dict[str, Callable[[Tensor], Any]] = {
    "linspace": lambda x: torch.linspace(-1, 3, x.shape[1]) + x,
    "linspace of float64": lambda x: torch.linspace(1, 0, steps=x.shape[1], dtype=torch.float64),
    "one_hot": lambda x: F.one_hot((x > 0).long(), 1 + x.shape[1]),
    "einsum of three": lambda x: torch.einsum("bi,bj,bk->ij", x, x, x),
    "fill_diagonal_": lambda x: (x.T @ x).fill_diagonal_(7.0),
    "indices": _by_sizes,
    "as_tensor": lambda x: torch.as_tensor([x.shape[0], x.shape[1]], dtype=x.dtype) + torch.as_tensor(x.shape[1]),
    "asarray": lambda x: torch.asarray([x.shape[1], 0.5]) + x.new_tensor([[1], [x.shape[0]]]),
    "a list": lambda x: torch.cat([x[:1], x[-1:]] * x.shape[1], 1),
    "a list, stacked": lambda x: torch.stack([x] * (x.shape[1] + 1)),
    "max_pool1d": lambda x: F.max_pool1d(torch.cat([x, x], 1)[:, None], 2, 1),
    "MaxPool1d": lambda x: nn.MaxPool1d(2, 2, 1)(torch.cat([x, x], 1)),
    "max_pool1d of all": lambda x: F.max_pool1d(x[:, None], x.size(1)).squeeze(2),
    "avg_pool1d of all": lambda x: F.avg_pool1d(x[:, None], kernel_size=x.size(1)),
    "max_pool2d of all": lambda x: F.max_pool2d(x[:, None, None].repeat(1, 1, 3, 1), (3, x.shape[1])),
    "topk": lambda x: torch.topk(x, math.ceil(math.log(x.shape[1] + 1)))[0].sum(1),
    "affine_grid": lambda x: F.affine_grid(x[:, :1, None] + torch.eye(2, 3), [*x[:, None].shape[:3], 3], align_corners=False),
    "affine_grid of corners": lambda x: F.affine_grid(x[:, :1, None] + torch.eye(3, 4), (x.shape[0], 1, 2, 3, x.shape[1] + 1), align_corners=True),
    "avg_pool2d of all": lambda x: F.avg_pool2d(x[:, None, None], x[:, None, None].shape[2:]),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_sizes(name: str) -> None:
    check(Over(OPERATORS[name]), _args, (SHAPES,), SIZES)


def test_covariances() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        return torch.cov(x.T), torch.corrcoef(x), torch.cov(x[0])

    check(Over(f), _args, (SHAPES,), [(2, 2), (3, 9), (4, 16)])


ONE: dict[str, Callable[[Tensor], Any]] = {
    "squeeze of a dimension": lambda x: x.squeeze(1) + 1,
    "squeeze": lambda x: x.squeeze() * 2,
    "a slice": lambda x: torch.cat([x, x], 1)[:, :3],
    "the last ones": lambda x: x[:, -2:] * 2,
    "the last ones, padded": lambda x: F.pad(x, (1, 0))[:, -3:],
}


@pytest.mark.parametrize("name", ONE)
def test_a_size_of_one(name: str) -> None:
    fast = compile_(ONE[name], _args(3, 9), target="cpu", dynamic_shapes=(SHAPES,))
    for size in SIZES:
        torch.testing.assert_close(fast(*_args(*size)), ONE[name](*_args(*size)))
