"""Layers that set themselves up at their first input, `if self.begun: return`, as quantizers and routers do: what their branches change, call and set."""

import copy
import logging
from typing import Any

import pytest
import torch
from torch import nn

import monotile
from monotile.frontends.torch.branches import paths, side_effects

T = torch.Tensor
log = logging.getLogger(__name__)


class Layer(nn.Module):
    """Its code is that of the first input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("begun", torch.tensor(False))
        self.register_buffer("code", torch.zeros(4))
        self.new, self.count = None, 0

    def begin(self, x: T) -> None:
        if self.begun:
            return
        if x.shape[0] < 4:
            log.info("few")
        self.code.data.copy_(x.mean(0))
        self.halve(x)
        self.new = None  # as it is
        self.count = 0
        self.begun.data.copy_(torch.tensor(True))

    @torch.no_grad()
    def halve(self, x: T) -> None:
        for factor in (0.25, 2.0):
            scaled = self.code * factor
            self.code.data.copy_(scaled)
        assert x.ndim == 2

    def forward(self, x: T) -> tuple[T, T]:
        self.begin(x)
        return x * 2 + self.code, (x * self.code).mean()


class Lists(Layer):
    """A branch calls an object that is not a function: the `if` makes paths."""

    def halve(self, x: T) -> None:
        seen: list[T] = []
        seen.append(x)
        self.code.data.copy_(self.code * 0.5)


class Stack(nn.Module):
    """A sum that is updated in place by what follows each."""

    def __init__(self, kind: type[Layer], count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([kind() for _ in range(count)])

    def forward(self, x: T) -> tuple[T, T]:
        total = torch.zeros(1)
        for layer in self.layers:
            x, found = layer(x)
            total += found
        return x, total


@pytest.mark.parametrize(("kind", "count", "most"), [(Layer, 6, 1), (Lists, 3, 8)])
def test_at_the_first_input(
    kind: type[Layer], count: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """most: paths; those of converted branches are one."""
    monkeypatch.setattr(paths, "MAX_PATHS", most)
    model = Stack(kind, count).eval()
    eager = copy.deepcopy(model)
    fast = monotile.compile(model, (torch.randn(3, 4),), target="cpu")
    for _ in range(3):
        x = torch.randn(3, 4)
        torch.testing.assert_close(fast(x), eager(x))
    torch.testing.assert_close(model.state_dict(), eager.state_dict())


class Set(nn.Module):
    """A branch sets an attribute to another number: the `if` makes paths."""

    def forward(self, x: T) -> T:
        self.count = 0
        if x.sum() > 0:
            self.count = 3
        return x * self.count


def test_another_number() -> None:
    fast = monotile.compile(Set().eval(), (torch.ones(3),), target="cpu")
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(fast(x), Set()(x))


def _updates(x: T, ys: list[T]) -> None:
    for y in ys:
        if y.ndim:
            x.add_(y)


def _appends(x: T, ys: list[T]) -> None:
    ys.append(x)


@torch.no_grad()
def _appends_without_gradients(x: T, ys: list[T]) -> None:
    ys.append(x)


def _gives(x: T, ys: list[T]) -> None:
    return ys.append(x)


def _raises(_: T) -> None:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("called", "so"),
    [
        (print, True),
        (log.warning, True),
        (_updates, True),
        (_appends, False),
        (_appends_without_gradients, False),
        (_gives, False),
        (_raises, False),
        ([].append, False),
    ],
)
def test_what_changes_tensors_only(called: Any, so: bool) -> None:
    assert side_effects.changes_tensors_only(called) is so
