"""Models that differentiate in their forward."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import monotile
from monotile.errors import CaptureError
from monotile.frontends.torch.capture import capture
from tests.frontend.against import check


class Field(nn.Module):
    """A physics-informed network: its value, gradient and Laplacian at each point."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def value(p: Tensor) -> Tensor:
            return self.net(p)[0]

        slope = torch.func.vmap(torch.func.grad(value))(points)
        curved = torch.func.vmap(torch.func.hessian(value))(points)
        return torch.func.vmap(value)(points), slope, curved.diagonal(dim1=1, dim2=2).sum(-1)


class Jacobians(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.SiLU(), nn.Linear(4, 2))

    def forward(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        backward = torch.func.vmap(torch.func.jacrev(self.net))(x)
        forward = torch.func.vmap(torch.func.jacfwd(self.net))(x)
        return backward, forward, torch.func.jvp(self.net, (x,), (v,))[1]


class Descends(nn.Module):
    """An energy-based network: steps down its energy, by `torch.autograd.grad`."""

    def __init__(self, *, attached: bool = False) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.LayerNorm(8), nn.Linear(8, 1))
        self.attached = attached

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            for _ in range(2):
                x = x.detach().requires_grad_(True)
                x = x - 0.1 * torch.autograd.grad(self.energy(x).sum(), x)[0]
        return x if self.attached else x.detach()


class Learns(nn.Module):
    """Weights of its own, that each row changes by `backward()`; parameters are on the way, whose gradients no one asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(4, 4), nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        weight, found = self.weight, list[Tensor]()
        with torch.enable_grad():
            for row in x:
                learned = weight.detach().clone().requires_grad_()
                (self.key(row) @ learned - self.value(row)).square().sum().backward()
                assert learned.grad is not None
                weight = (learned - 0.1 * learned.grad).detach()
                found.append(row @ weight)
        return torch.stack(found).detach()


@pytest.mark.parametrize("model", [Field(), Descends(), Descends(attached=True), Learns()])
def test_a_model_that_differentiates(model: nn.Module) -> None:
    check(model.eval(), (torch.randn(5, {Field: 2, Descends: 3, Learns: 4}[type(model)]),))


def test_jacobians() -> None:
    check(Jacobians().eval(), (torch.randn(5, 3), torch.randn(5, 3)))


def test_parameters_are_left_as_they_are() -> None:
    model = Learns().eval()
    monotile.compile(model, (torch.randn(2, 4),), target="cpu")
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


class Slope(nn.Module):
    """The derivative of a sum of squares of what `function` makes, by all of its arguments."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: Tensor) -> tuple[Tensor, ...]:
        def total(*x: Tensor) -> Tensor:
            return self.function(*x).square().sum()

        return torch.func.grad(total, tuple(range(len(x))))(*x)


IMAGE = (2, 4, 7, 6)
CASES: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "convolution": (lambda x, w, b: F.conv2d(x, w, b, 2, 1), (IMAGE, (6, 4, 3, 3), (6,))),
    "grouped, dilated": (
        lambda x, w: F.conv2d(x, w, None, (1, 2), 2, (2, 1), 2),
        (IMAGE, (6, 2, 3, 3)),
    ),
    "1d": (lambda x, w: F.conv1d(x, w, stride=3), ((2, 3, 11), (5, 3, 3))),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 1, 2),
        (IMAGE, (4, 3, 3, 3)),
    ),
    "average pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), (IMAGE,)),
    "average pool of what is there": (
        lambda x: F.avg_pool2d(x, (2, 3), None, 1, count_include_pad=False),
        (IMAGE,),
    ),
    "max pool": (lambda x: F.max_pool2d(x, 2), (IMAGE,)),
    "global pool": (lambda x: F.adaptive_avg_pool2d(x, 1), (IMAGE,)),
    "distances": (torch.cdist, ((2, 5, 3), (2, 4, 3))),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        ((1, 2, 5, 8),) * 3,
    ),
    "group normalisation": (lambda x: F.group_norm(x, 2), (IMAGE,)),
    "batch normalisation": (
        lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)),
        (IMAGE,),
    ),
    "activations": (lambda x: F.mish(F.gelu(F.elu(x))) + F.softplus(x) + F.hardswish(x), (IMAGE,)),
    "recurrence": (lambda x: x.cumsum(0).cumprod(1) + x.logsumexp(1, True), ((3, 4),)),
}


@pytest.mark.parametrize("name", CASES)
def test_derivatives_of(name: str) -> None:
    function, shapes = CASES[name]
    check(Slope(function).eval(), tuple(torch.randn(shape) for shape in shapes))


@pytest.mark.wide
def test_forward_over_reverse() -> None:
    """PyTorch has the powers' factors as numbers where it has tensors of others."""

    def energy(x: Tensor) -> Tensor:
        return (x.square() * x.pow(3)).sum() - 0.5 * (x**2).sum()

    class Curved(nn.Module):
        def forward(self, x: Tensor, v: Tensor) -> Tensor:
            slope = torch.func.grad(energy)
            return torch.func.vmap(lambda x, v: torch.func.jvp(slope, (x,), (v,))[1])(x, v)

    args = torch.randn(3, 4), torch.randn(3, 4)
    check(Curved(), args)
    dim = torch.export.Dim("b", min=1, max=8)
    with pytest.raises(CaptureError, match=r"test_derivatives.*vmap.*all sizes of dynamic_shapes"):
        capture(Curved(), args, dynamic_shapes=({0: dim}, {0: dim}))
