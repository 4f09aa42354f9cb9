"""Bounded walks in every order of axes: what is live is an axis of the result's producer, and a reduce axis anywhere among others."""

import itertools

import numpy as np
import pytest

from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Binary, Const, Expr, Load, Select, Tensor, Unary, add, const, idx
from monotile.ir.program import Compute, Program, compute
from monotile.pipeline import for_target, schedule
from monotile.plan.check.structure import verify
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from tests.codegen.cpu_run import TARGET, Compiled
from tests.codegen.emulate import COMPILER, emulate
from tests.conftest import wide

F32, I64, CUDA = DType.F32, DType.I64, cuda_target("sm_90a")
SHAPE = (24, 20, 36)
WAYS = [
    (live, reduced, combiner)
    for live in range(3)
    for count in (1, 2, 3)
    for reduced in itertools.combinations(range(3), count)
    if live in reduced
    for combiner in ("sum", "max")
]


def reductions() -> Program:
    """Each reduces |x| along some axes, where the position along one is in [low, high]."""
    x, ends = Tensor("x", SHAPE, F32), Tensor("ends", (2,), I64)
    body: list[Compute] = []
    for number, (live, reduced, combiner) in enumerate(WAYS):
        made = compute(
            Tensor(f"made_{number}", SHAPE, F32),
            lambda *at, number=number: add(Unary("abs", Load(x, at)), const(float(number), F32)),
        )
        kept = [p for p in range(3) if p not in reduced]

        def term(
            *at: Axis, made=made, kept=kept, reduced=reduced, live=live, combiner=combiner
        ) -> Expr:
            place = dict(zip((*kept, *reduced), at, strict=True))
            index = tuple(place[p] for p in range(3))
            low, high = (Load(ends, (idx(k),)) for k in (0, 1))
            seen = Binary("and", Binary("ge", index[live], low), Binary("le", index[live], high))
            nothing = const(0.0, F32) if combiner == "sum" else Const("-inf", F32)
            return Select(seen, Load(made.out, index), nothing)

        shape = tuple(SHAPE[p] for p in kept)
        inner = tuple(SHAPE[p] for p in reduced)
        out = Tensor(f"out_{number}", shape, F32)
        body += [made, compute(out, term, reduce=inner, combiner=combiner)]
    return Program((x, ends), (), tuple(body), tuple(c.out for c in body if c.reduce))


PROGRAM = reductions()
ENDS = ((0, 0), (3, 17), (5, 100), (19, 19), (-4, 8))


def given(low: int, high: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    return {"x": x, "ends": np.asarray((low, high))}


def bounded(program: Program) -> bool:
    computes = [
        s for s in program.body if isinstance(s, Compute) and not s.out.name.startswith("live")
    ]
    return all(s.live for s in computes)


def test_on_the_cpu() -> None:
    program, _ = for_target(PROGRAM, TARGET)
    assert bounded(program)
    compiled = Compiled(program)
    for ends in ENDS:
        values = given(*ends)
        for x, y in zip(compiled(values), evaluate(PROGRAM, values), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("workers", [3, wide(40)])
def test_on_the_emulator(workers: int) -> None:
    options = Options(workers=workers)
    program, context = for_target(PROGRAM, CUDA)
    plan = schedule(program, CUDA, options, context)
    verify(plan, program, CUDA)
    source = emit(program, plan, CUDA, options)
    for ends in ENDS:
        values = given(*ends)
        found = emulate(program, plan, source, values, late=False, seed=ends[1])
        for x, y in zip(found, evaluate(PROGRAM, values), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
