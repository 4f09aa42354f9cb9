"""What a kernel does step by step by itself: linear algebra, loops over open sizes, and models that differentiate in their forward; and samples at given places."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import monotile
from tests.frontend.loop_networks import Listed, Recurrent, Written, sequence

pytestmark = pytest.mark.gpu


class Of(nn.Module):
    def __init__(self, call: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *x: Tensor) -> tuple[Tensor, ...]:
        return self.call(*x)


def solved(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Of general matrices."""
    return torch.linalg.solve(x, y), torch.linalg.inv(x), torch.linalg.det(x), *torch.linalg.qr(x)


def factored(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Of positive ones."""
    whole = x @ x.mT + torch.eye(x.shape[-1], device=x.device, dtype=x.dtype)
    values, vectors = torch.linalg.eigh(whole)
    again = vectors * values[..., None, :] @ vectors.mT
    lower = torch.linalg.cholesky(whole)
    return lower, torch.cholesky_solve(y, lower), values, again, torch.linalg.svdvals(x)


def filtered(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """A Kalman filter over the columns of `y`."""
    noise = torch.eye(x.shape[-1], device=x.device, dtype=x.dtype)
    state, spread = torch.zeros_like(y[..., :1]), x @ x.mT
    for k in range(y.shape[-1]):
        gain = torch.linalg.solve(spread + noise, spread).mT
        state = state + gain @ (y[..., k : k + 1] - state)
        spread = spread - gain @ spread + 0.1 * noise
    return state, spread


class Slope(nn.Module):
    """A network beside its gradient and Laplacian at each point."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, points: Tensor) -> tuple[Tensor, ...]:
        def value(p: Tensor) -> Tensor:
            return self.net(p)[0]

        slope = torch.func.vmap(torch.func.grad(value))(points)
        curved = torch.func.vmap(torch.func.hessian(value))(points)
        return self.net(points), slope, curved.diagonal(dim1=1, dim2=2).sum(-1)


def sampled(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    places = y[..., :2] / 2
    modes = ("bilinear", "nearest", "bicubic")
    return tuple(F.grid_sample(x[None], places[None], mode, align_corners=False) for mode in modes)


CASES: dict[str, tuple[nn.Module, tuple[tuple[int, ...], ...]]] = {
    "solved, small": (Of(solved), ((2, 5, 5), (2, 5, 3))),
    "factored, small": (Of(factored), ((2, 4, 4), (2, 4, 2))),
    "filtered": (Of(filtered), ((3, 6, 6), (3, 6, 9))),
    "slope, small": (Slope(), ((20, 3),)),
    "sampled": (Of(sampled), ((8, 33, 47), (20, 30, 2))),
}


@pytest.mark.parametrize("name", CASES)
def test_as_in_float64(name: str) -> None:
    torch.manual_seed(0)
    model, shapes = CASES[name]
    model = model.cuda().requires_grad_(False)
    given = [torch.randn(s, device="cuda") for s in shapes]
    compiled = monotile.compile(model, tuple(given))
    given = [torch.randn(s, device="cuda") for s in shapes]
    found = compiled(*given)
    right = model.double()(*(x.double() for x in given))
    for a, b in zip(found, right, strict=True):
        assert (a.double() - b).norm() <= 1e-4 * b.norm()


@pytest.mark.parametrize("network", [Listed, Written], ids=["listed, small", "written"])
def test_as_many_turns_as_a_sequence_is_long(network: type[Recurrent]) -> None:
    model = network().cuda().requires_grad_(False)
    given = tuple(x.cuda() for x in sequence(5))
    compiled = monotile.compile(model, given, dynamic_shapes=({1: Dim("n", min=2, max=64)},))
    for size in (2, 7, 64):
        args = tuple(x.cuda() for x in sequence(size))
        torch.testing.assert_close(compiled(*args), model(*args), rtol=1e-4, atol=1e-5)
