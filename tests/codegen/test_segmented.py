"""Segmented reductions: bags whose offsets are data, so that each output loops over its own terms, on both targets."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

import monotile
from monotile.analysis.ends import segment_ends, share_of_terms
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Binary, Expr, Load, Select, add, const, idx
from monotile.ir.expr import Tensor as Array
from monotile.ir.program import Compute, Program, compute, statements
from monotile.kernels.reduction.method import Reduce
from monotile.plan.nodes import Plan
from monotile.plan.walk import stages_in
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.models.accuracy import error, exact

F32 = DType.F32
Function = Callable[[Tensor, Tensor, Tensor], Tensor]


class Rows(nn.Module):
    """What `function` makes of a table of 50 rows, ids and where their bags begin."""

    def __init__(self, width: int, function: Function) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(50, width), False)
        self.function = function

    def forward(self, ids: Tensor, at: Tensor) -> Tensor:
        return self.function(self.table, ids, at)


def bag(mode: str, **how: Any) -> Function:
    return lambda table, ids, at: embedding_bag(ids, table, at, mode=mode, **how)


def weighted(table: Tensor, ids: Tensor, at: Tensor) -> Tensor:
    weights = torch.cos(ids.float()).to(table.dtype)
    return embedding_bag(ids, table, at, mode="sum", per_sample_weights=weights)


def first_of_rows(table: Tensor, ids: Tensor, at: Tensor) -> Tensor:
    """The sum over so many ids of each row."""
    ids = ids.view(at.shape[0], -1)
    inside = torch.arange(ids.shape[1]) < at[:, None]
    return torch.where(inside[..., None], table[ids], 0).sum(1)


def some_of_rows(table: Tensor, ids: Tensor, at: Tensor) -> Tensor:
    """The same without those ids that data leaves out, each looked up twice."""
    rows = ids.view(at.shape[0], -1)
    inside = torch.arange(rows.shape[1]) < at[:, None]
    return torch.where((inside & (rows < 30))[..., None], table[ids[rows]], 0).sum(1)


def by_columns(table: Tensor, ids: Tensor, at: Tensor) -> Tensor:
    """The sum over so many ids of each column: neighbours end elsewhere."""
    inside = torch.arange(ids.shape[0])[:, None] < at
    return torch.where(inside, table[ids], 0).sum(0)


# Width of the table, ids, bags, and how they are read.
FEW, MANY = (300, 40), (1200, 3)
CASES: dict[str, tuple[int, tuple[int, int], Function]] = {
    "sum": (16, FEW, bag("sum")),
    "mean": (16, FEW, bag("mean")),
    "max": (16, FEW, bag("max")),
    "padded": (16, FEW, bag("mean", padding_idx=3)),
    "last": (16, FEW, bag("mean", include_last_offset=True)),
    "weighted": (16, FEW, weighted),
    "narrow": (1, FEW, bag("sum")),
    "long": (16, MANY, bag("mean")),
    "rows": (16, (1200, 12), first_of_rows),
    "some": (16, (1200, 12), some_of_rows),
    "columns": (16, (300, 16), by_columns),
}
# Outputs of a thread, and lanes of an output, on a GPU.
FORMS = {
    "padded": (1, 4),
    "weighted": (4, 1),
    "narrow": (1, 4),
    "long": (8, 128),
    "rows": (1, 4),
    "some": (1, 4),
    "columns": (1, 32),
}


def inputs(name: str, seed: int) -> tuple[Rows, tuple[Tensor, Tensor]]:
    """Bags of random lengths, some of them empty; with the second seed the last ones as well."""
    torch.manual_seed(seed)
    width, (count, bags), function = CASES[name]
    ids = torch.randint(0, 50, (count,))
    if name in ("rows", "some", "columns"):
        most = count if name == "columns" else count // bags
        return Rows(width, function), (ids, torch.randint(0, most + 1, (bags,)))
    at = torch.randint(0, count // 2 if seed else count + 1, (bags,)).sort().values
    at[0], at[-1] = 0, count if seed or name == "last" else at[-1]
    return Rows(width, function), (ids, at)


def reductions(plan: Plan, program: Program) -> list[Reduce]:
    """The methods of those with ends of their own."""
    made = {s.out.name: s for s in statements(program.body) if isinstance(s, Compute)}
    return [
        step.method
        for stage in stages_in(plan.body)
        for step in stage.steps
        if segment_ends(made[step.computes[0]]) and isinstance(step.method, Reduce)
    ]


class All(nn.Module):
    """Those of all cases."""

    def __init__(self) -> None:
        super().__init__()
        self.models = nn.ModuleList(inputs(name, 0)[0] for name in CASES)

    def forward(self, *args: tuple[Tensor, Tensor]) -> list[Tensor]:
        return [m(*x) for m, x in zip(self.models, args, strict=True)]


def test_on_the_cpu() -> None:
    model = All()
    fast = monotile.compile(model, tuple(inputs(name, 0)[1] for name in CASES), target="cpu")
    for seed in range(2):
        args = [inputs(name, seed)[1] for name in CASES]
        for name, x, y in zip(CASES, fast(*args), model(*args), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("name", FORMS)
def test_on_the_emulator(name: str) -> None:
    model, args = inputs(name, 0)
    model = model.half()
    fast = Emulated(model, args)
    found = [(r.outputs, r.lanes) for r in reductions(fast.plan, fast.program)]
    assert FORMS[name] in found
    for seed in range(2):
        _, args = inputs(name, seed)
        (x,) = fast(*args, seed=seed)
        assert error(x, exact(model, args)) <= 2 * error(model(*args), exact(model, args)) + 1e-6


IDS, AT, TABLE = (
    Array("ids", (64,), DType.I64),
    Array("at", (9,), DType.I64),
    Array("t", (50,), F32),
)


def summed(left: Callable[[Expr, Expr], Expr], *, looked_up: bool = True) -> Compute:
    """Of 8 rows, what `left` leaves of 64 terms."""

    def body(i: Expr, r: Expr) -> Expr:
        at = Load(IDS, (r,)) if looked_up else Binary("mod", r, idx(50))
        return Select(left(i, r), Load(TABLE, (at,)), const(0.0, F32))

    return compute(Array("y", (8,), F32), body, reduce=(64,), combiner="sum")


def between(first: Expr, r: Expr, end: Expr) -> Expr:
    return Binary("and", Binary("ge", r, first), Binary("lt", r, end))


def test_what_has_ends() -> None:
    def begun(i: Expr, r: Expr) -> Expr:
        return Binary("ge", r, Load(AT, (i,)))

    def held(i: Expr, r: Expr) -> Expr:
        return between(Load(AT, (i,)), r, Load(AT, (add(i, idx(1)),)))

    def beyond(i: Expr, r: Expr) -> Expr:
        """Of which the end cannot be read for each row."""
        return between(Load(AT, (i,)), r, Load(AT, (add(i, idx(2)),)))

    for left, share in ((held, 1 / 8), (begun, 1.0), (beyond, 1.0)):
        c = summed(left)
        ends = segment_ends(c)
        assert ends is not None
        assert isinstance(ends.body, Load) == (left is not beyond)
        assert share_of_terms(c) == share
    one = summed(lambda i, r: Binary("lt", r, Load(AT, (idx(3),))))
    assert segment_ends(one) is None  # the same for all
    assert segment_ends(summed(lambda i, r: Binary("le", r, i))) is None  # known before
    assert segment_ends(summed(held, looked_up=False)) is None


@settings(max_examples=20, deadline=None)
@given(
    at=st.lists(
        st.integers(-5, 70) | st.sampled_from([-(2**63), 2**63 - 1]), min_size=9, max_size=9
    )
)
def test_ends_are_what_the_conditions_leave(at: list[int]) -> None:
    """Of any offsets, also such as no bag has."""
    c = summed(lambda i, r: between(Load(AT, (i,)), r, Load(AT, (add(i, idx(1)),))))
    ends = segment_ends(c)
    assert ends is not None
    i, places = Axis("i0", 8), {"at": np.asarray(at)}
    found = [
        evaluate(Program((AT,), (), (s,), (s.out,)), places)[0]
        for e in (ends.first, ends.end)
        for s in [Compute(Array("end", (8,), DType.I64), (i,), (), None, e)]
    ]
    for k in range(8):
        assert [*range(*(int(x[k]) for x in found))] == [
            r for r in range(64) if at[k] <= r < at[k + 1]
        ]
