"""Bags of an embedding: reductions over the terms that are left, of the shape that the bags have."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

import monotile
from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Binary, Expr, Load, Select, add, const, idx, mul
from monotile.ir.expr import Tensor as Array
from monotile.ir.program import Compute, Program, compute, statements
from monotile.ir.verify import verify
from monotile.pipeline import transform
from monotile.runtime.tensors import from_numpy
from monotile.transform.simplify.shorten import shorten_reductions
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.models.accuracy import error, exact

F32 = DType.F32


class Bags(nn.Module):
    """Of a table of 50 rows, by ids [bags, indices of each]; with `step`, of flat ids, by offsets so far apart."""

    def __init__(self, width: int = 16, step: int = 0, last: bool = False, **how: Any) -> None:
        super().__init__()
        self.weighted = bool(how.pop("weighted", False))
        self.table = nn.Parameter(torch.randn(50, width), False)
        self.step, self.last, self.how = step, last, how

    def forward(self, ids: Tensor) -> Tensor:
        weights = torch.cos(ids.float()).to(self.table.dtype) if self.weighted else None
        if not self.step:
            return embedding_bag(ids, self.table, per_sample_weights=weights, **self.how)
        offsets = torch.arange(0, ids.shape[0] + self.last, self.step)
        return embedding_bag(
            ids, self.table, offsets, per_sample_weights=weights, include_last_offset=self.last, **self.how
        )  # fmt: skip


def bag(*shape: int, **how: Any) -> Callable[[], tuple[Bags, Tensor]]:
    def made() -> tuple[Bags, Tensor]:
        torch.manual_seed(0)
        return Bags(**how), torch.randint(0, 50, shape)

    return made


# Each with the terms of its sums. By flat ids the last bag is short, or empty.
CASES: dict[str, tuple[Callable[[], tuple[Bags, Tensor]], set[int]]] = {
    "one": (bag(40, 1, mode="sum"), set()),
    "one_mean": (bag(40, 1, mode="mean"), set()),
    "one_max": (bag(40, 1, mode="max"), set()),
    "one_padded": (bag(40, 1, mode="mean", padding_idx=3), set()),
    "one_weighted": (bag(40, 1, mode="sum", weighted=True), set()),
    "one_wide": (bag(40, 1, width=1, mode="sum"), set()),
    "two_bags": (bag(2, 1, mode="sum"), set()),
    "five": (bag(12, 5, mode="sum"), {5}),
    "five_mean": (bag(12, 5, mode="mean"), {5}),
    "five_max": (bag(12, 5, mode="max"), {5}),
    "five_padded": (bag(12, 5, mode="mean", padding_idx=3), {5}),
    "five_max_padded": (bag(12, 5, mode="max", padding_idx=3), {5}),
    "five_weighted": (bag(12, 5, mode="sum", weighted=True), {5}),
    "flat": (bag(40, step=5, mode="mean"), {5}),
    "short_last": (bag(38, step=5, mode="mean"), {5}),
    "all_but_last": (bag(38, step=5, last=True, mode="sum"), {5}),
    "to_the_last": (bag(40, step=5, last=True, mode="max"), {5}),
    "to_the_last_padded": (bag(40, step=5, last=True, mode="mean", padding_idx=3), {5}),
    "one_bag": (bag(1, 12, mode="mean"), {12}),
}


def lowered(model: nn.Module, *args: Tensor) -> tuple[Program, Tensor]:
    """After the passes for any target, with its result by the evaluator."""
    found = capture(model, args)
    program, constants = transform(found.program, found.constants, Options())
    verify(program)
    values = {n: p.numpy() for n, p in found.parameters.items()} | dict(constants)
    values |= {t.name: x.numpy() for t, x in zip(program.inputs, args, strict=True)}
    with np.errstate(all="ignore"):
        (result,) = evaluate(program, values)
    return program, from_numpy(result)


def terms(program: Program) -> set[int]:
    return {a.extent for s in statements(program.body) if isinstance(s, Compute) for a in s.reduce}


@pytest.mark.parametrize("name", CASES)
def test_bags(name: str) -> None:
    made, left = CASES[name]
    model, ids = made()
    program, found = lowered(model, ids)
    assert terms(program) == left
    torch.testing.assert_close(found, model(ids))


class Several(nn.Module):
    """The bags of each."""

    def __init__(self, models: list[Bags]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, *ids: Tensor) -> tuple[Tensor, ...]:
        return tuple(m(i) for m, i in zip(self.models, ids, strict=True))


def several(*names: str) -> tuple[Several, tuple[Tensor, ...]]:
    models, ids = zip(*(CASES[name][0]() for name in names), strict=True)
    return Several(list(models)), ids


def test_bags_on_the_cpu() -> None:
    model, ids = several(*CASES)
    fast = monotile.compile(model, ids, target="cpu")
    for found, right in zip(fast(*ids), model(*ids), strict=True):
        torch.testing.assert_close(found, right)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_bags_on_the_emulator() -> None:
    model, ids = several("one", "one_padded", "five_padded", "short_last", "five_max")
    model = model.half()
    found, right, theirs = Emulated(model, ids)(*ids), exact(model, ids), model(*ids)
    for x, y, z in zip(found, right, theirs, strict=True):
        assert error(x, [y]) <= 2 * error(z, [y]) + 1e-6


class Tables(nn.Module):
    """Four tables, each of which looks up a bag of one."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(50, 16, mode="sum") for _ in range(4))
        self.mix = nn.Linear(16, 16)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        rows = [t(ids[:, k : k + 1]) for k, t in enumerate(self.tables)]
        y = torch.cat([self.mix(x)[:, None], torch.stack(rows, 1)], 1)
        return y @ y.transpose(1, 2)


def test_tables_are_looked_up_where_they_are_concatenated() -> None:
    model = Tables().requires_grad_(False)
    args = torch.randn(40, 16), torch.randint(0, 50, (40, 4))
    program, result = lowered(model, *args)
    rows = [w.tensor.shape for w in program.weights if w.table]
    assert rows == [(4, 50, 16)]
    assert [s.out.name for s in program.body if isinstance(s, Compute)][-2:] == ["cat", "matmul"]
    assert not any("embedding" in s.out.name for s in program.body if isinstance(s, Compute))
    torch.testing.assert_close(result, model(*args))


IDS, TABLE = Array("ids", (64,), DType.I64), Array("table", (50,), F32)


def summed(
    left: Callable[[Expr, Expr], Expr], combiner: str = "sum", *, looked_up: bool = True
) -> Compute:
    """Of 8 rows, what `left` leaves of 64 terms."""
    nothing = {"sum": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}[combiner]

    def body(i: Expr, r: Expr) -> Expr:
        at = Load(IDS, (r,))
        value = Load(TABLE, (at if looked_up else Binary("mod", r, idx(50)),))
        return Select(left(i, r), value, const(nothing, F32))

    return compute(Array("y", (8,), F32), body, reduce=(64,), combiner=combiner)


def extent(c: Compute) -> int:
    """Of its reduction when it is shortened; the value must be the same."""
    program = Program((IDS, TABLE), (), (c,), (c.out,))
    after = shorten_reductions(program)
    verify(after)
    g = np.random.default_rng(0)
    values = {"ids": g.integers(0, 50, 64), "table": g.standard_normal(50).astype(np.float32)}
    (want,), (got,) = evaluate(program, values), evaluate(after, values)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    (s,) = after.body
    assert isinstance(s, Compute)
    return s.reduce[0].extent if s.reduce else 1


def within(r: Expr, first: Expr, end: Expr) -> Expr:
    return Binary("and", Binary("ge", r, first), Binary("lt", r, end))


@pytest.mark.parametrize("combiner", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("shift", [-3, 0, 11])
def test_ranges_that_reach_beyond(combiner: str, shift: int) -> None:
    """Of six terms from 8 i + shift on, those that there are."""

    def left(i: Expr, r: Expr) -> Expr:
        first = add(mul(i, idx(8)), idx(shift))
        return within(r, first, add(first, idx(6)))

    assert extent(summed(left, combiner)) == 6


def test_ranges_of_several_lengths() -> None:
    assert extent(summed(lambda i, r: within(r, i, mul(i, idx(3))))) == 14
    assert extent(summed(lambda i, r: within(mul(r, idx(2)), i, add(i, idx(7))))) == 4
    assert extent(summed(lambda i, r: within(r, mul(i, i), add(mul(i, i), idx(9))))) == 9
    assert extent(summed(lambda i, r: within(r, add(i, idx(70)), add(i, idx(75))))) == 1


def test_ends_with_exceptions() -> None:
    def left(i: Expr, r: Expr) -> Expr:
        last = Binary("eq", i, idx(7))
        ended = Binary("or", last, Binary("lt", r, mul(add(i, idx(1)), idx(7))))
        return Binary("and", Binary("ge", r, mul(i, idx(7))), ended)

    assert extent(summed(left)) == 15

    def begun(i: Expr, r: Expr) -> Expr:
        first = Binary("or", Binary("ge", r, add(i, idx(9))), Binary("eq", i, idx(0)))
        return Binary("and", first, Binary("lt", r, add(i, idx(12))))

    assert extent(summed(begun)) == 12


def test_what_stays() -> None:
    def near(i: Expr, r: Expr) -> Expr:
        return within(r, i, add(i, idx(3)))

    assert extent(summed(near)) == 3
    assert extent(summed(near, looked_up=False)) == 64  # as a window, or keys
    assert extent(summed(lambda i, r: Binary("le", r, i), looked_up=False)) == 64
    assert extent(summed(lambda i, r: within(r, i, add(i, idx(40))))) == 64  # little shorter
    assert extent(summed(lambda i, r: within(r, i, Load(IDS, (i,))))) == 64  # known in the call
    assert extent(summed(lambda i, r: Binary("ge", r, i))) == 64
    neutral = summed(near)
    other = Select(near(*neutral.axes, *neutral.reduce), Load(TABLE, (Load(IDS, (Axis("r0", 64),)),)), const(1.0, F32))  # fmt: skip
    assert extent(Compute(neutral.out, neutral.axes, neutral.reduce, "sum", other)) == 64
