"""Models that write to parts of tensors, on the CPU, against PyTorch; and their kernels for the GPU build."""

from collections.abc import Callable

import pytest
import torch

import monotile
from monotile.config import Options

Update = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


class Model(torch.nn.Module):
    def __init__(self, f: Update) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: torch.Tensor, at: torch.Tensor, v: torch.Tensor) -> object:
        return self.f(x, at, v)


def assigned(x: torch.Tensor, at: torch.Tensor, v: torch.Tensor) -> object:
    y = x.clone()
    y[at] = v
    return y, y.sum()


def put(x: torch.Tensor, at: torch.Tensor, v: torch.Tensor) -> object:
    return x.index_put((at,), v, accumulate=True), x + 1


def added(x: torch.Tensor, at: torch.Tensor, v: torch.Tensor) -> object:
    return torch.relu(x).index_add(0, at, v)


def twice(x: torch.Tensor, at: torch.Tensor, v: torch.Tensor) -> object:
    y = torch.relu(x).index_add(0, at, v)
    z = y.index_add(0, at, v * 2)
    return y + z, z


def scattered(x: torch.Tensor, at: torch.Tensor, v: torch.Tensor) -> object:
    return x.scatter(0, at[:, None].expand_as(v), v).softmax(-1)


def appended(x: torch.Tensor, at: torch.Tensor, v: torch.Tensor) -> object:
    """One row at a position from data, as a cache of keys grows."""
    cache = x.index_copy(0, at[:1], v[:1])
    return cache, cache @ v[0]


@pytest.mark.parametrize("f", [assigned, put, added, twice, scattered, appended])
def test_updates(f: Update) -> None:
    torch.manual_seed(0)
    model = Model(f).eval()
    args = (torch.randn(6, 40), torch.tensor([0, 3, 3, 5]), torch.randn(4, 40))
    before = args[0].clone()
    fast = monotile.compile(model, args, target="cpu", options=Options(cache=False))
    torch.testing.assert_close(fast(*args), model(*args))
    torch.testing.assert_close(args[0], before, rtol=0, atol=0)
    gpu = monotile.compile(model, args, target="cuda:sm_90a", options=Options(cache=False))
    assert gpu.kernels == 1
