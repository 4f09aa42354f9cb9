"""Breaks, continues and returns of nested loops that depend on tensors, assignments in tests, and dataclasses that branches and loops assign."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.export import Dim
from torch.utils._pytree import tree_leaves

import monotile


def breaks(x: Tensor) -> object:
    count = 0
    for i in range(3):
        for j in range(4):
            if x[i, j] > 1:
                break
            count += 1
        x = x * 0.9
    return x, count


def continues_and_breaks(x: Tensor) -> Tensor:
    total = x.new_zeros(())
    for i in range(3):
        for j in range(5):
            if x[i, j] < -1:
                continue
            total = total + x[i, j]
            if total > 2:
                break
        if total > 3:
            break
    return total


def skips_layers(x: Tensor) -> object:
    skipped = 0
    for _ in range(6):
        if x.norm() < 1:
            continue
        x = x * 0.7
        if x.max() > 5:
            break
        skipped += 1
    return x, skipped


def returns(x: Tensor) -> object:
    for i in range(3):
        for j in range(5):
            if x[i, j] > 1.5:
                return x[i] * 2, i * 10 + j
    return x[0], -1


def keeps_targets(x: Tensor) -> object:
    total = 0
    for i in range(3):
        j = -1
        for j in range(5):
            if x[i, j] > 1:
                break
        total = total + j
    return total, j


def has_else(x: Tensor) -> object:
    count = 0
    for i in range(3):
        for j in range(5):
            if x[i, j] > 1:
                break
        else:
            count += 1
            continue
        count += 10
    return count


def of_three(x: Tensor) -> object:
    count = 0
    for i in range(2):
        for j in range(2):
            for k in range(2):
                if x[i, j + k] > 0.8:
                    break
                count += 1
            if count > 4:
                break
        count += 10
    return count


def within_while(x: Tensor) -> object:
    steps = 0
    while x.abs().max() > 0.5:
        for i in range(3):
            if x[i].sum() > 1:
                break
            x = x * 0.95
        x, steps = x * 0.8, steps + 1
    return x, steps


def names_norms(x: Tensor) -> object:
    steps = 0
    while (norm := x.norm()) > 0.5 and steps < 9:
        x, steps = x * 0.6, steps + 1
        if x.sum() > 1.5:
            continue
        if (largest := x.abs().max()) < 0.3:
            break
        x = x * 0.9 + largest / 100
    if (total := x.sum()) > 2:
        x = x / total
    return x, norm, steps


def finds_the_best(x: Tensor) -> object:
    best, at, total = -float("inf"), -1, 0
    for k, value in enumerate(x.flatten().unbind()[:12]):
        if value > best:
            best, at = value, k
        if value > 0:
            total = total + value
        elif value < -1:
            total = total - value
    return best, at, x * total


@dataclass
class State:
    x: Tensor
    steps: int = 0


@dataclass(frozen=True)
class Named:
    x: Tensor
    name: str = "state"


def assigns_states(x: Tensor) -> object:
    state, named = State(x), Named(x)
    while state.x.abs().max() > 0.1:
        state = State(state.x * 0.5, state.steps + 1)
        named = replace(named, x=named.x + state.x)
    if named.x.sum() > 0:
        named = Named(named.x - 1)
    return state.x, state.steps, named.x


CASES = [breaks, continues_and_breaks, skips_layers, returns, keeps_targets, has_else, of_three, within_while, names_norms, finds_the_best, assigns_states]  # fmt: skip


@pytest.mark.parametrize("f", CASES)
def test_exits(f: Callable[[Tensor], object]) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 5)
    fast = monotile.compile(f, (x,), target="cpu")
    for call in (x, 3 * x, -x.abs(), 0.1 * x.abs(), 2 * x + 1):
        found, wanted = fast(call), f(call)
        torch.testing.assert_close(found, wanted)
        assert [*map(type, tree_leaves(found))] == [*map(type, tree_leaves(wanted))]


def leaves_an_open_loop(x: Tensor) -> Tensor:
    for t in range(x.shape[1]):
        if x[:, t].sum() < 0:
            continue
        x = x * 0.9
        if x.abs().max() < 0.5:
            return x + 1
    return x


def counts_steps(x: Tensor) -> object:
    h, steps = x[:, 0], 0
    for t in range(x.shape[1]):
        h = h * 0.5 + x[:, t]
        if h.abs().max() > 1:
            break
        steps += 1
    return h, steps


def test_numbers_that_an_open_loop_counts() -> None:
    torch.manual_seed(0)
    shapes = ({1: Dim("length", max=9)},)
    fast = monotile.compile(counts_steps, (torch.rand(2, 5, 4),), target="cpu", dynamic_shapes=shapes)  # fmt: skip
    for n, scale in ((5, 1.0), (9, 0.3), (1, 0.1), (7, 0.1)):
        x = scale * torch.rand(2, n, 4)
        found, wanted = fast(x), counts_steps(x)
        torch.testing.assert_close(found, wanted)
        assert isinstance(found[1], int)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_exits_from_loops_over_a_dynamic_size(target: str) -> None:
    """A size of 1 is a path of its own, of whose loop no iteration is left behind the first one."""
    torch.manual_seed(0)
    x, shapes = torch.randn(2, 5, 4), ({1: Dim("length", max=9)},)
    fast = monotile.compile(leaves_an_open_loop, (x,), target=target, dynamic_shapes=shapes)
    for n in (5, 9, 1) if target == "cpu" else ():
        call = torch.rand(2, n, 4) - 0.3
        torch.testing.assert_close(fast(call), leaves_an_open_loop(call))
