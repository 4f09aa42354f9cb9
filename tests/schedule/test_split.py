"""Reductions in parts, so that there are tasks for all workers."""

import numpy as np
import pytest

from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Binary, Expr, Load, Select, Unary, const
from monotile.ir.program import Carry, Compute, Loop, Program, compute, statements
from monotile.ir.verify import verify
from monotile.schedule.split import split_reductions
from monotile.targets.cpu.target import cpu_target
from tests.schedule import programs as p

F32, BOOL = DType.F32, DType.BOOL
ROWS, COLUMNS = 256, 768
X = p.tensor("x", ROWS, COLUMNS, dtype=F32)


def clamped() -> Program:
    """Every element clamped to what whether any is infinite says, as T5 does in float16."""
    some = compute(
        p.tensor("some", dtype=BOOL),
        lambda i, j: Unary("isinf", Load(X, (i, j))),
        reduce=(ROWS, COLUMNS),
        combiner="any",
    )
    limit = compute(
        p.tensor("limit", dtype=F32),
        lambda: Select(Load(some.out, ()), const(2.0, F32), const(3.0, F32)),
    )
    out = compute(
        p.tensor("y", ROWS, COLUMNS, dtype=F32),
        lambda i, j: Binary("min", Load(X, (i, j)), Load(limit.out, ())),
    )
    return Program((X,), (), (some, limit, out), (out.out,))


def whole(combiner: str) -> Program:
    def body(i: Expr, j: Expr) -> Expr:
        return Load(X, (i, j))

    c = compute(p.tensor("y", dtype=F32), body, reduce=(ROWS, COLUMNS), combiner=combiner)
    return Program((X,), (), (c,), (c.out,))


def names(program: Program) -> set[str]:
    return {s.out.name for s in statements(program.body) if isinstance(s, Compute)}


def agree(before: Program, after: Program, x: np.ndarray) -> None:
    verify(after)
    for a, b in zip(evaluate(before, {"x": x}), evaluate(after, {"x": x}), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("infinite", [True, False])
def test_whether_any_element_is_something(infinite: bool) -> None:
    program = clamped()
    after = split_reductions(program, p.H100)
    assert names(after) == {"some_parts", "y"}  # what is made of the parts is made where it is read
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    if infinite:
        x[77, 5] = np.inf
    agree(program, after, x)


@pytest.mark.parametrize("combiner", ["sum", "max", "min"])
def test_everything_to_one_value(combiner: str) -> None:
    program = whole(combiner)
    after = split_reductions(program, p.H100)
    assert names(after) == {"y_parts", "y"}
    agree(
        program, after, np.random.default_rng(1).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    )


def test_parts_that_a_loop_hands_on_stay_the_only_ones() -> None:
    """As where a loop was rotated: `y_parts` is what the iteration before made."""
    start, parts, out = (p.tensor(n, dtype=F32) for n in ("start", "y_parts", "out"))
    (y,) = whole("sum").body
    assert isinstance(y, Compute)
    after = p.plus("after", parts, y.out)
    loop = Loop(Axis("l", 3), (Carry(start, parts, after.out, out),), (), (y, after))
    program = Program((X, start), (), (loop,), (out,))
    verify(program)
    assert split_reductions(program, p.H100) is program


def test_few_workers_need_no_parts() -> None:
    program = whole("sum")
    assert split_reductions(program, cpu_target(workers=2)) is program
