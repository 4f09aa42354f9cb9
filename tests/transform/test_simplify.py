"""Simplification: the algebra, the index algebra, pruned selects; and that nothing changes in value."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monotile.config import Options
from monotile.ir.body import Body
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import (
    Axis,
    Binary,
    Cast,
    Expr,
    Load,
    Select,
    Tensor,
    Unary,
    const,
    idx,
)
from monotile.ir.intervals import interval
from monotile.ir.printer import show_expr
from monotile.ir.program import Compute, Program, compute
from monotile.transform.simplify.simplify import lossless, simplify, simplify_expr
from tests.ir.strategies import SPECIAL, Builder

F16, BF16, F32, F64, I32, I64, BOOL = (
    DType.F16,
    DType.BF16,
    DType.F32,
    DType.F64,
    DType.I32,
    DType.I64,
    DType.BOOL,
)
I0, I1, I2 = Axis("i0", 12), Axis("i1", 64), Axis("i2", 5)
X, Y, Z = (Load(Tensor(name, (), F32), ()) for name in "xyz")
N = Load(Tensor("n", (), I64), ())
H = Load(Tensor("h", (), F16), ())
P, Q = (Load(Tensor(name, (), BOOL), ()) for name in "pq")


def op(name: str, *args: Expr | float) -> Expr:
    """A node, int64 literals written as numbers."""
    parts: list[Any] = [idx(a) if isinstance(a, int) else a for a in args]
    return Unary(name, *parts) if len(parts) == 1 else Binary(name, *parts)


def f32(value: float) -> Expr:
    return const(value, F32)


FLAT = op("add", op("mul", I0, 64), I1)
INDEX = [
    (op("floordiv", FLAT, 64), "i0"),
    (op("mod", FLAT, 64), "i1"),
    (op("floordiv", FLAT, 128), "i0 // 2"),
    (op("mod", FLAT, 128), "i0 % 2 * 64 + i1"),
    (op("floordiv", FLAT, 16), "i0 * 4 + i1 // 16"),
    (op("mod", FLAT, 16), "i1 % 16"),
    (op("floordiv", op("floordiv", I1, 4), 8), "i1 // 32"),
    (op("mod", op("mod", I1, 32), 8), "i1 % 8"),
    (op("floordiv", op("mod", I1, 32), 8), "i1 // 8 % 4"),
    (op("floordiv", op("add", I1, 64), 64), "1"),
    (op("floordiv", op("add", op("floordiv", I1, 4), 3), 5), "(i1 + 12) // 20"),
    (op("add", op("mul", op("floordiv", I1, 8), 8), op("mod", I1, 8)), "i1"),
    (
        op(
            "add",
            op("mul", op("mod", op("floordiv", I1, 4), 4), 4),
            op("add", op("mul", op("floordiv", I1, 16), 16), op("mod", I1, 4)),
        ),
        "i1",
    ),
    (op("sub", op("add", I0, 5), op("sub", I0, I1)), "i1 + 5"),
    (op("mul", op("sub", I0, 2), -3), "6 - i0 * 3"),
    (op("lt", FLAT, 128), "i0 < 2"),
    (op("le", op("add", I0, 3), 8), "i0 < 6"),
    (op("gt", 4, I0), "i0 < 4"),
    (op("ge", op("mul", I0, -1), -3), "i0 < 4"),
    (op("lt", I0, op("add", I0, 1)), "true"),
    (op("eq", op("add", I0, 20), I2), "false"),
    (op("max", op("min", I0, 11), 0), "i0"),
    (op("floordiv", N, 1), "n[]"),
    (op("floordiv", op("add", N, 64), 64), "(n[] + 64) // 64"),  # n + 64 may wrap
    (op("sub", N, N), "0"),
    (op("sub", N, -(2**63)), "n[] + -9223372036854775808"),  # which has no negative
    (op("mul", N, -(2**63)), "n[] * (-9223372036854775808)"),
]
ALGEBRA = [
    (op("add", X, f32(0.0)), "x[] + 0.0"),  # -0.0 + 0.0 is 0.0
    (op("add", X, f32(-0.0)), "x[]"),
    (op("sub", X, f32(0.0)), "x[]"),
    (op("mul", X, f32(0.0)), "x[] * 0.0"),  # of an infinity that is NaN
    (op("mul", f32(1.0), X), "x[]"),
    (op("mul", X, f32(-1.0)), "-x[]"),
    (op("div", X, f32(8.0)), "x[] * 0.125"),
    (op("div", X, f32(3.0)), "x[] / 3.0"),
    (op("div", X, f32(0.0)), "x[] / 0.0"),
    (op("sub", X, X), "x[] - x[]"),
    (op("pow", X, f32(2.0)), "x[] * x[]"),
    (op("pow", X, f32(0.5)), "pow(x[], 0.5)"),  # of -0.0 that is no square root
    (op("neg", op("neg", X)), "x[]"),
    (op("add", f32(1.0), op("erf", X)), "one_plus_erf(x[])"),
    (op("add", op("tanh", X), f32(1.0)), "logistic(x[] * 2.0) * 2.0"),
    (op("div", f32(1.0), op("add", f32(1.0), op("exp", op("neg", X)))), "logistic(x[])"),
    (op("div", Y, op("add", op("exp", op("neg", X)), f32(1.0))), "y[] * logistic(x[])"),
    (op("div", Y, op("add", op("exp", op("neg", X)), f32(2.0))), "y[] / (exp(-x[]) + 2.0)"),
    (op("add", op("erf", X), f32(0.5)), "erf(x[]) + 0.5"),
    (op("add", X, op("neg", Y)), "x[] - y[]"),
    (op("eq", X, X), "x[] == x[]"),
    (op("not", op("lt", X, Y)), "not (x[] < y[])"),
    (op("not", op("lt", N, 3)), "n[] >= 3"),
    (op("not", op("not", P)), "p[]"),
    (op("and", P, const(False, BOOL)), "false"),
    (op("or", P, const(True, BOOL)), "true"),
    (op("add", f32(1.0), f32(2.0)), "3.0"),
    (op("exp", f32(0.0)), "1.0"),
    (op("sqrt", f32(-1.0)), "nan"),
    (Select(P, X, X), "x[]"),
    (Select(op("not", P), X, Y), "where(p[], y[], x[])"),
    (Select(P, Select(P, X, Y), Z), "where(p[], x[], z[])"),
    (Select(P, const(True, BOOL), const(False, BOOL)), "p[]"),
    (Select(P, Q, const(False, BOOL)), "p[] and q[]"),
    (op("ne", Cast(P, F32), f32(0.0)), "p[]"),
    (op("eq", Cast(P, I64), 0), "not p[]"),
    (Cast(const(3, I64), F32), "3.0"),
    (Cast(f32(float("nan")), I64), "i64(nan)"),  # not defined, so not decided here
    (Cast(Cast(H, F32), F16), "h[]"),
    (Cast(Cast(I0, I32), I64), "i0"),
    (Cast(Cast(N, I32), I64), "i64(i32(n[]))"),
    (Cast(Cast(X, F16), F32), "f32(f16(x[]))"),
    (Cast(Select(P, Cast(H, F32), f32(1.0)), F16), "where(p[], h[], 1.0f16)"),
]


@pytest.mark.parametrize(
    ("e", "text"), INDEX + ALGEBRA, ids=lambda x: x if isinstance(x, str) else ""
)
def test_algebra(e: Expr, text: str) -> None:
    assert show_expr(simplify_expr(e)) == text


def test_zeros_of_either_sign_are_two_literals() -> None:
    e = op("add", op("mul", X, f32(0.0)), op("mul", Y, f32(-0.0)))
    assert show_expr(simplify_expr(e)) == "x[] * 0.0 + y[] * (-0.0)"


def test_excess_precision_drops_the_rounding_in_between() -> None:
    e = Cast(Cast(op("mul", X, Y), F16), F32)
    assert simplify_expr(e) is e
    assert show_expr(simplify_expr(e, excess_precision=True)) == "x[] * y[]"
    chosen = Cast(Select(P, Cast(X, BF16), Load(Tensor("b", (), BF16), ())), F32)
    assert show_expr(simplify_expr(chosen, excess_precision=True)) == "where(p[], x[], f32(b[]))"
    through_integers = Cast(Cast(X, I32), F32)
    assert simplify_expr(through_integers, excess_precision=True) is through_integers


def test_whether_a_rounded_value_is_infinite_is_asked_of_the_rounded_value() -> None:
    e = Unary("isinf", Cast(Cast(op("mul", X, Y), F16), F32))
    assert show_expr(simplify_expr(e, excess_precision=True)) == "isinf(f32(f16(x[] * y[])))"


def test_concatenated_parts_are_pruned_to_the_one_that_is_read() -> None:
    a, b = Tensor("a", (32,), F32), Tensor("b", (32,), F32)

    def cat(i: Expr) -> Expr:
        return Select(op("lt", i, 32), Load(a, (i,)), Load(b, (op("sub", i, 32),)))

    i = Axis("i0", 16)
    assert show_expr(simplify_expr(cat(op("add", i, 40)))) == "b[i0 + 8]"
    assert show_expr(simplify_expr(cat(op("mul", i, 2)))) == "a[i0 * 2]"
    spread = op("add", op("mul", Axis("i1", 2), 32), i)
    assert show_expr(simplify_expr(cat(spread))) == "where(i1 < 1, a[i0], b[i0])"


def test_an_index_along_a_single_element_is_zero() -> None:
    t = Tensor("t", (1, 64), F32)
    assert show_expr(simplify_expr(Load(t, (op("floordiv", FLAT, 1000), I1)))) == "t[0, i1]"
    gathered = Load(t, (N, I1))
    assert simplify_expr(gathered) is gathered  # the run checks n


def test_reductions_over_one_element_are_none() -> None:
    x = Tensor("x", (4, 1, 3), F32)
    s = compute(
        Tensor("y", (4,), F32), lambda i, r, q: Load(x, (i, r, q)), reduce=(1, 3), combiner="sum"
    )
    (new,) = simplify(Program((x,), (), (s,), (s.out,)), Options()).body
    want = compute(s.out, lambda i, r: Load(x, (i, idx(0), r)), reduce=(3,), combiner="sum")
    assert new == want
    only = compute(
        Tensor("z", (4,), I64), lambda i, r: Load(x, (i, r, r)), reduce=(1,), combiner="argmax"
    )
    (position,) = simplify(Program((x,), (), (only,), (only.out,)), Options()).body
    assert position == compute(only.out, lambda _: idx(0))


@pytest.mark.parametrize("combiner", ["sum", "max"])
def test_a_sum_over_one_element_is_no_negative_zero(combiner: Any) -> None:
    x = Tensor("x", (4, 1), F32)
    s = compute(Tensor("y", (4,), F32), lambda i, r: Load(x, (i, r)), reduce=(1,), combiner=combiner)  # fmt: skip
    program = Program((x,), (), (s,), (s.out,))
    values = {"x": np.array([[-0.0], [0.0], [1.0], [np.nan]], np.float32)}
    (right,) = evaluate(program, values)
    (found,) = evaluate(simplify(program, Options()), values)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(right))
    np.testing.assert_array_equal(found, right)


def test_unchanged_is_the_same_object() -> None:
    x = Tensor("x", (12, 64), F32)
    s = compute(Tensor("y", (12, 64), F32), lambda i, j: Load(x, (i, j)))
    program = Program((x,), (), (s,), (s.out,))
    assert simplify(program, Options()) is program


A, B, C = Axis("i0", 6), Axis("i1", 5), Axis("i2", 8)
GRID = dict(
    zip(
        ("i0", "i1", "i2"),
        (g.reshape(-1) for g in np.meshgrid(range(6), range(5), range(8))),
        strict=True,
    )
)


@given(st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_index_expressions_keep_their_values(data: st.DataObject) -> None:
    b = Builder(data.draw)
    e = b.integer([A, B, C], 5)
    if b.chance(30):
        e = Binary(b.pick(["lt", "le", "gt", "ge", "eq", "ne"]), e, b.integer([A, B, C], 2))
    new = simplify_expr(e)
    body = Body({}, GRID, "")
    before, after = body.value(e, None), body.value(new, None)
    assert np.array_equal(*np.broadcast_arrays(before, after)), show_expr(e)
    assert simplify_expr(new) is new
    wide, narrow = interval(e), interval(new)
    assert wide is not None
    assert narrow is not None


UNARY = [op("neg", X), op("abs", X), op("neg", op("abs", X)), op("abs", op("neg", X))]
CONSTANTS = [f32(v) for v in (0.0, -0.0, 1.0, -1.0, 2.0, 0.25, 3.0, float("inf"), float("nan"))]


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "min", "max", "pow", "eq", "lt", "ge"]
)
def test_float_algebra_at_the_edges(name: str) -> None:
    """Every pair of an expression and a literal, at zeros of both signs, infinities and NaN, bit for bit."""
    values = np.array([*SPECIAL, 1.0, -2.5, 1e-40, 3e38], np.float32)
    for x in (X, *UNARY):
        for c in CONSTANTS:
            if name == "pow" and c == f32(3.0):
                continue
            for e in (op(name, x, c), op(name, c, x)):
                before, after = _at(e, values), _at(simplify_expr(e), values)
                bits = before.view(np.uint8) == after.view(np.uint8)
                nan = np.isnan(before) & np.isnan(after) if before.dtype.kind == "f" else False
                assert np.all(bits.reshape(len(values), -1).all(1) | nan), show_expr(e)


def _at(e: Expr, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`e` for each value of x."""
    return np.asarray([Body({"x": np.asarray(v)}, {}, "").value(e, None) for v in values])


@pytest.mark.parametrize("source", list(DType))
@pytest.mark.parametrize("target", list(DType))
def test_lossless_casts_come_back(source: DType, target: DType) -> None:
    if not lossless(source, target):
        return
    bits = np.arange(256, dtype=np.uint8)
    if source is BOOL:
        x = np.array([False, True])
    else:
        edge = np.concatenate([bits, 255 - bits, bits * 7, bits * 31]).view(np.uint8)
        x = np.ascontiguousarray(edge[: len(edge) // 8 * 8]).view(source.numpy)
    with np.errstate(all="ignore"):
        back = x.astype(target.numpy).astype(source.numpy)
    equal = (back == x) | ((x != x) & (back != back))
    assert equal.all()


def test_equal_and_different_are_opposites_even_of_nan() -> None:
    e = Select(op("eq", X, Y), f32(0.0), Select(op("ne", X, Y), f32(1.0), Z))
    assert show_expr(simplify_expr(e)) == "where(x[] == y[], 0.0, 1.0)"


def test_nothing_is_read_for_no_elements_or_no_terms() -> None:
    x = Tensor("x", (3, 0), F32)
    index = (op("floordiv", Axis("i0", 0), 0), Axis("r0", 0))
    for reduce, shape in (((0,), (3,)), ((2,), (0,))):
        s = compute(
            Tensor("y", shape, F32), lambda *_: Load(x, index), reduce=reduce, combiner="sum"
        )
        (after,) = simplify(Program((x,), (), (s,), (s.out,)), Options()).body
        assert isinstance(after, Compute)
        assert after.body == f32(0.0)


def test_what_sorting_finds_is_a_position() -> None:
    """Integers that were computed are in the range of what computes them; what may wrap, or is given, is anything."""
    given, rank = Tensor("given", (6,), I64), Tensor("rank", (6,), I64)
    order = compute(
        Tensor("order", (6,), I64),
        lambda i, r: Select(Binary("eq", Load(rank, (r,)), i), r, idx(0)),
        reduce=(6,),
        combiner="max",
    )

    def wrapped(x: Expr) -> Expr:
        return Select(Binary("lt", x, idx(0)), Binary("add", x, idx(6)), x)

    def row(name: str, t: Tensor) -> Compute:
        x = Tensor("x", (6,), F32)
        at = Load(t, (Binary("mod", Axis("i0", 6), idx(6)),))
        return compute(Tensor(name, (6,), F32), lambda _: Load(x, (wrapped(at),)))

    rows = row("known", order.out), row("unknown", given)
    program = Program(
        (given, rank, Tensor("x", (6,), F32)), (), (order, *rows), tuple(r.out for r in rows)
    )
    found = [show_expr(s.body) for s in simplify(program, Options()).body if isinstance(s, Compute)]
    assert found[1] == "x[order[i0]]"
    assert "where" in found[2]
