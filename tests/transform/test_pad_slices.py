"""Slices of rows that are no whole vectors: padded with all that lies in their columns."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated

SIDE = 66  # of images of whose columns there is a megabyte


class Net(nn.Module):
    """`f` of an image of 16 channels that a convolution has made `columns` of. bias: of that convolution."""

    def __init__(
        self, f: Callable[["Net", Tensor], object], columns: int, bias: bool = True
    ) -> None:
        super().__init__()
        self.first = nn.Conv2d(16, columns, 1, bias=bias)
        self.windows = nn.Conv2d(columns, columns, 3, padding=1, groups=columns)
        self.last = nn.LazyConv2d(16, 1)
        self.f = f

    def forward(self, x: Tensor) -> object:
        return self.f(self, x)


def gated(net: Net, x: Tensor) -> Tensor:
    """Restormer's feed-forward network."""
    a, b = net.windows(net.first(x)).chunk(2, 1)
    return net.last(F.gelu(a) * b)


def modulated(net: Net, x: Tensor) -> Tensor:
    """FocalNet's modulation: single columns are gates."""
    q, c, gates = net.first(x).split((64, 64, 3), 1)
    c = F.conv2d(c, net.windows.weight[:64], padding=1, groups=64)
    means = c.mean((2, 3), keepdim=True)
    return net.last(q * (c.relu() * gates[:, :1] + c * gates[:, 1:2] + means * gates[:, 2:]))


def scaled(net: Net, x: Tensor) -> Tensor:
    """By means of each column over the image: of the same columns, in a tensor of their own."""
    y = net.windows(net.first(x))
    y = y * y.mean((2, 3), keepdim=True).sigmoid()
    return net.last(y[:, :61] + y[:, 61:])


def repeated(net: Net, x: Tensor) -> Tensor:
    """In rolled layers."""
    for _ in range(3):
        x = x + gated(net, x)
    return x


CASES = [(gated, 126), (modulated, 131), (scaled, 122), (repeated, 126)]


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize(("f", "columns"), CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_networks(f: Callable[[Net, Tensor], object], columns: int, bias: bool) -> None:
    torch.manual_seed(0)
    model, x = Net(f, columns, bias), torch.randn(1, 16, SIDE, SIDE)
    with torch.no_grad():
        model(x)
    run = Emulated(model.half(), (x.half(),), workers=8)
    padded = [n for n in run.plan.places if n.endswith("_padded")]
    assert padded
    (found,) = run(x.half())
    torch.testing.assert_close(
        found.double(), model.double()(x.half().double()), rtol=2e-2, atol=2e-2
    )


def ordered(net: Net, x: Tensor) -> Tensor:
    """What reads a row as a whole: its columns stay together."""
    y = net.first(x)
    return net.last(y[:, :63].softmax(1) * y[:, 63:]) * y.flip(1)[:, :16].mean()


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize(
    ("f", "columns", "side"),
    [
        (gated, 128, SIDE),
        (gated, 126, 8),
        (ordered, 126, SIDE),
    ],  # vectors already; small; read across
)
def test_what_stays(f: Callable[[Net, Tensor], object], columns: int, side: int) -> None:
    model, x = Net(f, columns), torch.randn(1, 16, side, side)
    with torch.no_grad():
        model(x)
    run = Emulated(model.half(), (x.half(),), workers=8)
    assert not any(n.endswith("_padded") for n in run.plan.places)
