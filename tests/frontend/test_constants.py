"""What constants that a model holds say while it is traced, and constants that it updates."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import monotile
from monotile.frontends.torch.capture import capture
from tests.frontend.against import check

T = torch.Tensor


class Columns(nn.Module):
    """A layer for each column that is no number, as TabNet has them: which those are, a plain tensor says."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = torch.tensor([True, False, True])
        self.layers = nn.ModuleList([nn.Linear(1, 2)])

    def forward(self, x: T) -> T:
        found, met = list[T](), 0
        for k, number in enumerate(self.numbers):
            if number:
                found.append(x[:, k : k + 1])
            else:
                found.append(self.layers[met](x[:, k : k + 1]))
                met += 1
        return torch.cat(found, 1)


class Repeated(nn.Module):
    """A plain tensor says how often, and a literal what of."""

    def __init__(self) -> None:
        super().__init__()
        self.times = torch.tensor([2, 1])

    def forward(self, x: T) -> T:
        if torch.tensor([1.0, 2.0]).sum() > 2:
            for _ in range(int(self.times[0] + self.times[1])):
                x = x * 2
        if (x.sum() > 0).item():
            x = x + 1
        return x


class Written(nn.Module):
    """What it makes of a constant changes before it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.held = torch.tensor([1.0, 2.0])

    def forward(self, x: T) -> T:
        made = self.held * 2
        made[0] = -1
        return x + 1 if made[0] > 0 else x * 3


@pytest.mark.parametrize("made", [Columns, Repeated, Written])
def test_constants_are_known(made: Callable[[], nn.Module]) -> None:
    check(made().eval(), (torch.randn(2, 3),))


def test_they_are_known_for_all_sizes() -> None:
    model, rows = Columns().eval(), Dim("rows", min=1, max=8)
    compiled = monotile.compile(model, (torch.randn(4, 3),), dynamic_shapes=({0: rows},))
    x = torch.randn(7, 3)
    torch.testing.assert_close(compiled(x), model(x))


class Counting(nn.Module):
    """Counts its calls in a tensor of its own that is no buffer, and does something else from the third on."""

    def __init__(self, asks: bool) -> None:
        super().__init__()
        self.asks, self.calls, self.seen = asks, torch.zeros(()), [torch.zeros(2)]

    def forward(self, x: T) -> T:
        y = x * 2 if self.asks and self.calls > 1 else x
        self.calls.add_(1)
        self.seen[0].mul_(2).add_(x[0])
        return y + self.calls


@pytest.mark.parametrize("asks", [False, True])
def test_what_a_model_updates_is_no_constant(asks: bool) -> None:
    model, same, x = Counting(asks).eval(), Counting(asks).eval(), torch.ones(2)
    compiled = monotile.compile(model, (x,))
    assert not model.calls.any()
    assert not model.seen[0].any()
    for _ in range(4):
        torch.testing.assert_close(compiled(x), same(x))
    torch.testing.assert_close(model.seen[0], same.seen[0])


def test_nor_in_a_run_that_tells_numbers() -> None:
    class Padded(Counting):
        def forward(self, x: T, *lengths: Any) -> T:
            return super().forward(x)[: int(lengths[0].max())]

    model = Padded(False).eval()
    capture(model, (torch.ones(2), torch.tensor([2, 1])))
    assert not model.calls.any()


def test_literals_of_a_module_on_both_paths() -> None:
    """Each trace counts them anew, so that one name is that of several."""

    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = list[torch.Tensor]()
            if x.sum() > 0:
                kept.append(x * torch.tensor([1.0, 2.0, 3.0]))
            else:
                kept.append(x)
            return kept[0] * torch.tensor([4.0, 5.0, 6.0])

    model = nn.Sequential(Inner(), Inner())
    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        check(model, (x,))
