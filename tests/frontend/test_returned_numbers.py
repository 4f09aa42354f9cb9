"""Python numbers among a model's results that a branch decides."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import monotile

T = torch.Tensor


class EarlyExit(nn.Module):
    """The layer whose answer is sure enough, and whether none was."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.heads = nn.ModuleList(nn.Linear(8, 3) for _ in range(3))

    def forward(self, x: T) -> tuple[T, int, bool]:
        p = x
        for k, (layer, head) in enumerate(zip(self.layers, self.heads, strict=True)):
            x = x + torch.tanh(layer(x))
            p = head(x).softmax(-1)
            if -(p * p.log()).sum() < 0.95:
                return p, k, False
        return p, len(self.layers), True


class Verdict(nn.Module):
    """Numbers that some branches share, and one that a tensor has."""

    def forward(self, x: T) -> dict[str, object]:
        if x.sum() > 2:
            return {"x": x.sort(-1).values, "scale": 1.5, "at": x.argmax().item()}
        if x.sum() < -2:
            return {"x": x.cumsum(-1), "scale": 2.5, "at": -1}
        return {"x": x + 1, "scale": 1.5, "at": -1}


@pytest.mark.parametrize("kind", [EarlyExit, Verdict])
def test_numbers_that_branches_choose(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind().eval().requires_grad_(False)
    compiled = monotile.compile(model, (torch.randn(1, 8),), target="cpu")
    seen = set[object]()
    for _ in range(20):
        x = torch.randn(1, 8)
        found, wanted = compiled(x), model(x)
        torch.testing.assert_close(found, wanted)
        leaves = pytree.tree_leaves
        assert [type(y) for y in leaves(found)] == [type(y) for y in leaves(wanted)]
        seen.add(str([y for y in leaves(wanted) if not isinstance(y, torch.Tensor)]))
    assert len(seen) > 1


def halved(x: T) -> tuple[T, int]:
    step = 0
    for step in range(9):  # noqa: B007 # read after the loop
        x = x * 0.5
        if x.abs().amax() < 0.1:
            break
    return x, step


def solved(x: T) -> tuple[T, T, int]:
    for step in range(40):
        y = 0.5 * (x + 2 / x)
        if (y - x).abs().amax() < 1e-3:
            return y, y * step, step
        x = y
    return x, x, -1


def searched(x: T) -> tuple[T, int, float, T]:
    """Of targets that are tuples, with names that are bound nowhere else, and an `else`."""
    for k, scale in enumerate([0.5, 0.75] * 20):
        x, count = x * scale, k + 2
        if x.abs().amax() < 0.1:
            break
    else:
        count = -5
    return x, count, scale, x + k


@pytest.mark.parametrize("model", [halved, solved, searched])
def test_numbers_of_the_iteration_that_ends_a_loop(
    model: Callable[[T], tuple[object, ...]],
) -> None:
    """Few paths are traced one by one; of many, numbers are tensors until the call is over."""
    torch.manual_seed(0)
    compiled = monotile.compile(model, (torch.rand(4),), target="cpu")
    seen = set[object]()
    for x in (torch.rand(4) + 0.2, torch.rand(4) * 20, torch.full((4,), 1e25), torch.zeros(4) + 2):
        found, wanted = compiled(x), model(x)
        torch.testing.assert_close(found, wanted)
        assert [type(y) for y in found] == [type(y) for y in wanted]
        seen.add(wanted[-1] if model is not searched else wanted[1])
    assert len(seen) > 2
