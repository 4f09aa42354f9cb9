"""Reductions leave out what adds nothing."""

import numpy as np

from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Binary, Cast, Expr, Load, Select, Tensor, add, const, idx, sub
from monotile.ir.program import Compute, Program, compute
from monotile.transform.simplify.simplify import simplify

F16, F32 = DType.F16, DType.F32
X = Tensor("x", (4, 7), F32)
Y = Tensor("y", (4,), F32)


def within(e: Expr, lo: int, hi: int) -> Expr:
    return Binary("and", Binary("le", idx(lo), e), Binary("lt", e, idx(hi)))


def extents(c: Compute) -> tuple[int, ...]:
    """Of the reduce axes after simplification; the value must be the same."""
    program = Program((X,), (), (c,), (c.out,))
    after = simplify(program, Options(excess_precision=False))
    values = {"x": np.random.default_rng(0).standard_normal(X.shape).astype(np.float32)}
    (want,), (got,) = evaluate(program, values), evaluate(after, values)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    (s,) = after.body
    assert isinstance(s, Compute)
    return tuple(a.extent for a in s.reduce)


def window(combiner: str, beyond: float, *, extent: int = 1000, shift: int = 0) -> Compute:
    def body(i: Expr, r: Expr) -> Expr:
        at = sub(r, idx(shift)) if shift else r
        return Select(within(at, 0, 7), Load(X, (i, at)), const(beyond, F32))

    return compute(Y, body, reduce=(extent,), combiner=combiner)


def test_a_window_that_reaches_beyond_what_it_reads() -> None:
    assert extents(window("sum", 0.0)) == (7,)
    assert extents(window("max", -float("inf"), shift=5)) == (7,)
    assert extents(window("sum", 0.0, extent=6)) == (6,)


def test_what_adds_something_stays() -> None:
    assert extents(window("sum", 1.0, extent=20)) == (20,)
    assert extents(window("max", 0.0, extent=20)) == (20,)
    causal = compute(
        Y,
        lambda i, r: Select(Binary("le", r, i), Load(X, (i, r)), const(0.0, F32)),
        reduce=(7,),
        combiner="sum",
    )
    assert extents(causal) == (4,)  # rows are four


def test_positions_count_from_the_first() -> None:
    c = compute(
        Tensor("y", (4,), DType.I64),
        lambda i, r: Select(within(r, 3, 7), Load(X, (i, r)), const(-float("inf"), F32)),
        reduce=(7,),
        combiner="argmax",
    )
    assert extents(c) == (7,)


def test_nested_guards_and_casts() -> None:
    c = compute(
        Tensor("y", (4,), F32),
        lambda i, r: Cast(
            Select(
                Binary("lt", r, idx(900)),
                Select(
                    Binary("ge", r, idx(898)),
                    Cast(Load(X, (i, sub(r, idx(898)))), F16),
                    const(0.0, F16),
                ),
                const(0.0, F16),
            ),
            F32,
        ),
        reduce=(1000,),
        combiner="sum",
    )
    assert extents(c) == (2,)


def test_nothing_contributes() -> None:
    c = compute(
        Y,
        lambda i, r: Select(
            Binary("gt", add(r, i), idx(500)), Load(X, (i, idx(0))), const(0.0, F32)
        ),
        reduce=(100,),
        combiner="sum",
    )
    program = simplify(Program((X,), (), (c,), (c.out,)), Options())
    (got,) = evaluate(program, {"x": np.ones(X.shape, np.float32)})
    np.testing.assert_array_equal(got, 0)
