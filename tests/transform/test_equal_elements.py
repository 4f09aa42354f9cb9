"""What is the same for each sequence of a batch is computed once."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from monotile.ir.program import Compute, Program, statements
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated

BATCH = 5


class Net(nn.Module):
    def __init__(self, f: Callable[["Net", Tensor], object]) -> None:
        super().__init__()
        self.f = f
        self.learned = nn.Parameter(torch.randn(1, 6, 16))
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> object:
        return self.f(self, x)


def positions(net: Net, x: Tensor) -> Tensor:
    """Projected, and a softmax of them."""
    p = net.learned.expand(len(x), -1, -1)
    return x + net.first(p).softmax(1)


def queries(net: Net, x: Tensor) -> Tensor:
    """Of a first decoder layer: they attend to each other, and then to a sequence."""
    q = net.learned.repeat(len(x), 1, 1)
    own = F.scaled_dot_product_attention(net.first(q), net.second(q), q)
    q = net.norm(q + own)
    return F.scaled_dot_product_attention(net.second(q), net.first(x), x)


def given(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    """As results of their own, which have all elements."""
    p = net.norm(net.first(net.learned.expand(len(x), -1, -1)))
    return p, net.second(p) * x


def of_each(net: Net, x: Tensor) -> Tensor:
    return net.first(x + net.learned)


def computed(program: Program) -> int:
    """The number of statements that compute something for each of the batch."""
    each = (s for s in statements(program.body) if isinstance(s, Compute) and s.reduce)
    return sum(s.out.shape[:1] == (BATCH,) for s in each)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("f", [positions, queries, given, of_each])
def test_networks(f: Callable[[Net, Tensor], object]) -> None:
    torch.manual_seed(0)
    model, x = Net(f), torch.randn(BATCH, 6, 16)
    run = Emulated(model, (x,), workers=4)
    found, want = run(x), model.double()(x.double())
    for y, z in zip(found, want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(y.double(), z, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("f", "left"), [(positions, 0), (given, 0), (of_each, 1)])
def test_what_is_left(f: Callable[[Net, Tensor], object], left: int) -> None:
    run = Emulated(Net(f), (torch.randn(BATCH, 6, 16),), workers=4)
    assert computed(run.program) == left
