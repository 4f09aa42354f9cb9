"""Models that differentiate in their forward, through `torch.compile`."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import monotile


class Differentiates(nn.Module):
    def __init__(self, way: Callable[..., Callable[..., Tensor]]) -> None:
        super().__init__()
        self.way = way
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.vmap(self.way(lambda row: self.net(row).sum()))(x)


@pytest.mark.parametrize("way", [torch.func.grad, torch.func.jacrev])
def test_one_kernel(way: Callable[..., Callable[..., Tensor]]) -> None:
    model, x = Differentiates(way).eval(), torch.randn(5, 3)
    with torch.no_grad():
        fast = torch.compile(model, backend="monotile")
        torch.testing.assert_close(fast(x), model(x))
        assert monotile.explain(model, (x,)).kernels == 1
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0


class Forces(nn.Module):
    """Dynamo breaks the graph where autograd begins: what is before it has to be known to autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().clone().requires_grad_(True)
            (slope,) = torch.autograd.grad(self.energy(x).sum(), x)
        return -slope


def test_autograd_goes_on_behind_a_graph() -> None:
    model, x = Forces().eval(), torch.randn(5, 3)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first of a process that there are gradients
        torch.testing.assert_close(torch.compile(model, backend="monotile")(x), model(x))
    fast = monotile.compile(model, (x,), target="cpu")
    torch.testing.assert_close(fast(x), model(x))
