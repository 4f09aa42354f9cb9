"""Attributes that forward assigns tensors for the next call: buffers and plain ones, of any module, in lists and dicts."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import monotile
from monotile.errors import CaptureError
from monotile.frontends.torch.capture import capture

T = torch.Tensor


class Buffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(2, 3))
        self.register_buffer("other", torch.ones(2, 3), persistent=False)
        self.held: T
        self.other: T


class Leaky(Buffer):
    def forward(self, x: T) -> T:
        self.held = self.held * 0.5 + x
        return self.held * 2


class Last(Buffer):
    """The argument itself is kept, and what was kept is the result."""

    def forward(self, x: T) -> tuple[T, T]:
        before = self.held
        self.held = x
        return before, before[0]


class Swapped(Buffer):
    def forward(self, x: T) -> T:
        self.held, self.other = self.other, self.held
        return self.held * x


class Stacked(nn.Module):
    """Assignments in modules inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Leaky(), Swapped(), Leaky()])

    def forward(self, x: T) -> T:
        for layer in self.layers:
            x = layer(x)
        return x


class Plain(nn.Module):
    """Plain attributes: one that is read, and one that only shows what was found."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.zeros(2, 3)
        self.shown = torch.zeros(7)
        self.states = [torch.zeros(2, 3), torch.ones(3)]
        self.named = {"sum": torch.zeros(())}

    def forward(self, x: T) -> tuple[T, T]:
        self.hidden = torch.tanh(self.hidden + x)
        self.states = [self.states[0] + self.hidden, self.states[1] * 2]
        self.named["sum"] = self.named["sum"] + x.sum()
        self.shown = self.hidden * 3
        return self.shown + self.states[0] * self.states[1], self.named["sum"] * 1


MODELS = (Leaky, Last, Swapped, Stacked, Plain)


@pytest.mark.parametrize("make", MODELS)
def test_calls_in_order(make: Callable[[], nn.Module]) -> None:
    model, same = make().eval(), make().eval()
    compiled = monotile.compile(model, (torch.randn(2, 3),), target="cpu")
    for _ in range(4):
        x = torch.randn(2, 3)
        torch.testing.assert_close(compiled(x.clone()), same(x))
    torch.testing.assert_close(dict(model.named_buffers()), dict(same.named_buffers()))


def test_a_kept_tensor_that_grows() -> None:
    class Growing(Buffer):
        def forward(self, x: T) -> T:
            self.held = torch.cat([self.held, x])
            return self.held.sum(0)

    with pytest.raises(CaptureError, match=r"held is float32\[2, 3\].*assigned float32\[4, 3\]"):
        capture(Growing().eval(), (torch.randn(2, 3),))


def test_what_nobody_reads_may_have_any_shape() -> None:
    class Showing(Plain):
        def forward(self, x: T) -> T:  # pyright: ignore[reportIncompatibleMethodOverride]
            self.shown = x.softmax(-1)
            return self.shown

    model = Showing().eval()
    captured = capture(model, (torch.randn(2, 3),))
    assert not captured.program.states
    assert model.shown.shape == (7,)
