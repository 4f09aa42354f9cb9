"""Segmented reductions with several outputs per thread at once, on the emulator."""

import itertools
import math
from collections.abc import Iterator

import msgspec
import pytest
import torch
from torch import Tensor, nn

from monotile.analysis.ends import segment_ends
from monotile.choice.chooser import Prefer
from monotile.errors import VerificationError
from monotile.ir.program import Compute, statements
from monotile.kernels.common.vectors import fitting
from monotile.kernels.reduction.method import Reduce
from monotile.kernels.reduction.slots import MOST_SLOTS
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Stage, Step
from monotile.plan.walk import each_stage, stages_in
from monotile.targets.cuda.emit import emit
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import TARGET, Emulated
from tests.models.accuracy import error, exact

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")

NODES, EDGES, WIDTH = 37, 150, 12


class Sums(nn.Module):
    """Scattered sums of what neighbours have, weighted or not, and what follows them."""

    def forward(self, x: Tensor, weights: Tensor, source: Tensor, target: Tensor) -> Tensor:
        for _ in range(2):
            parts = x[:, source] * weights[:, None]
            x = x + torch.zeros_like(x).index_add(1, target, parts)
            x = x + torch.zeros_like(x).index_add(1, target, x[:, source]).relu()
        return x


def inputs(kind: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Rows with other numbers of terms each: none, one, or nearly all."""
    target = {
        "random": lambda: torch.randint(0, NODES, (EDGES,)),
        "a hub": lambda: torch.where(torch.rand(EDGES) < 0.8, 7, torch.randint(0, NODES, (EDGES,))),
        "most rows empty": lambda: torch.randint(0, 3, (EDGES,)) * 18,
        "all in the last": lambda: torch.full((EDGES,), NODES - 1),
    }[kind]()
    x, weights = torch.randn(2, NODES, WIDTH) / 8, torch.rand(EDGES)
    return x.to(dtype), weights.to(dtype), torch.randint(0, NODES, (EDGES,)), target


KINDS = ("random", "a hub", "most rows empty", "all in the last")


def with_slots(fast: Emulated, each: tuple[int, ...], turns: int) -> int:
    """Has all sums with ends of their own made by a thread each, so many vectors at once along each dim, from the last one on, or one after the other; how many there are."""
    made = {s.out.name: s for s in statements(fast.program.body) if isinstance(s, Compute)}
    found = 0

    def settled(step: Step) -> Step:
        nonlocal found
        method, anchor = step.method, made.get(step.computes[step.anchor])
        if not isinstance(method, Reduce) or anchor is None or segment_ends(anchor) is None:
            return step
        found += 1
        width = fitting(4, step.dims[-1].extent, anchor.axes[-1].extent)
        method = Reduce(1, order=method.order, outputs=width, exact=True)
        if not each:
            return msgspec.structs.replace(step, method=method.several((), turns))
        counts = tuple(itertools.islice(itertools.chain(each, itertools.repeat(1)), len(step.dims)))
        return msgspec.structs.replace(step, method=method.several(counts[::-1], turns))

    def stage(s: Stage) -> Stage:
        return msgspec.structs.replace(s, steps=tuple(map(settled, s.steps)))

    fast.plan = msgspec.structs.replace(fast.plan, body=each_stage(fast.plan.body, stage))
    verify(fast.plan, fast.program, TARGET)
    fast.source = emit(fast.program, fast.plan, TARGET, fast.options)
    return found


@pytest.mark.parametrize(("each", "turns"), [((4,), 2), ((8,), 1), ((2, 2), 3), ((1, 5), 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_counts(dtype: torch.dtype, each: tuple[int, ...], turns: int) -> None:
    """Also such that do not divide the task's part."""
    model = Sums()
    fast = Emulated(model, inputs("random", dtype), chooser=Prefer("list rows", bool))
    assert with_slots(fast, each, turns) >= 2
    assert "ask_together" in fast.source.text
    for seed, kind in enumerate(KINDS):
        torch.manual_seed(seed)
        args = inputs(kind, dtype)
        wanted = exact(model, args)
        eager = error([model(*args)], wanted)
        assert error(fast(*args, seed=seed), wanted) <= 2 * eager + 4e-6


class Layers(nn.Module):
    """Sums that products read, in rows that are made longer for them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(20, 20) for _ in range(2))

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x + torch.zeros_like(x).index_add(0, target, x[source])).relu()
        return x


@pytest.mark.parametrize("each", [(4,), (2, 2), (1, 4)])
def test_rows_with_zeros_behind(each: tuple[int, ...]) -> None:
    """What is behind a row has no terms, and lies outside of what they read. The results are those of one output after the other."""
    model = Layers().half().requires_grad_(False)
    x = (torch.randn(NODES, 20) / 8).half()
    chooser = Prefer("list rows", bool, Prefer("pad rows", bool))
    one, several = (
        Emulated(model, (x, *inputs("random", torch.float16)[2:]), chooser=chooser)
        for _ in range(2)
    )
    assert with_slots(one, (), 2) == with_slots(several, each, 2) == 1
    sums = [s for s in statements(one.program.body) if isinstance(s, Compute) and segment_ends(s)]
    assert all(s.out.shape[-1] == 24 for s in sums)
    for seed, kind in enumerate(KINDS):
        args = x, *inputs(kind, torch.float16)[2:]
        torch.testing.assert_close(one(*args), several(*args, seed=seed), rtol=0, atol=0)


@pytest.mark.parametrize("each", [(7,), (2, 3)])
def test_single_elements(each: tuple[int, ...]) -> None:
    """Of rows that no vector divides."""
    model = Sums()
    args = inputs("random", torch.float32)
    args = torch.randn(2, NODES, 7), *args[1:]
    fast = Emulated(model, args, chooser=Prefer("list rows", bool))
    assert with_slots(fast, each, 2) >= 2
    for seed, kind in enumerate(KINDS):
        args = args[0], *inputs(kind, torch.float32)[1:]
        wanted = exact(model, args)
        assert error(fast(*args, seed=seed), wanted) <= 2 * error([model(*args)], wanted) + 4e-6


def reductions(fast: Emulated) -> Iterator[tuple[Step, Reduce]]:
    for stage in stages_in(fast.plan.body):
        for step in stage.steps:
            if isinstance(step.method, Reduce) and step.method.at_once:
                yield step, step.method


def test_a_thread_of_many_outputs_has_several_at_once() -> None:
    nodes, edges, width = 200, 400, 64
    x, source = torch.randn(4, nodes, width), torch.randint(0, nodes, (edges,))
    target = torch.randint(0, nodes, (edges,))
    model = Sums()
    args = x, torch.rand(edges), source, target
    fast = Emulated(model, args, chooser=Prefer("list rows", bool))
    found = list(reductions(fast))
    assert found
    assert all(1 < math.prod(m.at_once) <= MOST_SLOTS for _, m in found)
    assert "at once x" in found[0][1].describe()
    wanted = exact(model, args)
    assert error(fast(*args), wanted) <= 2 * error([model(*args)], wanted) + 4e-6


def test_the_plan_says_along_each_dim() -> None:
    fast = Emulated(Sums(), inputs("random", torch.float32), chooser=Prefer("list rows", bool))
    with pytest.raises(VerificationError, match="at once"):
        with_slots(fast, (MOST_SLOTS * 2,), 1)
