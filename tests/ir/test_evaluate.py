"""The evaluator against NumPy and against hand-computed values."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from monotile.errors import IndexOutOfRangeError, InputError, VerificationError
from monotile.ir import scalar
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import (
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Tensor,
    Unary,
    cast,
    const,
    idx,
)
from monotile.ir.program import (
    Branch,
    BranchOut,
    Carry,
    Compute,
    Loop,
    Program,
    Scatter,
    Stack,
    Weight,
    compute,
)

F16, F32, I64, BOOL = DType.F16, DType.F32, DType.I64, DType.BOOL
Values = dict[str, np.ndarray[Any, Any]]


def run(s: Any, outputs: tuple[Tensor, ...], values: Values) -> tuple[np.ndarray[Any, Any], ...]:
    inputs = tuple(Tensor(n, x.shape, DType.from_numpy(x.dtype)) for n, x in values.items())
    body = s if isinstance(s, tuple) else (s,)
    return evaluate(Program(inputs, (), body, outputs), values)


def one(s: Compute | Scatter, values: Values) -> np.ndarray[Any, Any]:
    return run(s, (s.out,), values)[0]


def tensor(name: str, x: np.ndarray[Any, Any]) -> Tensor:
    return Tensor(name, x.shape, DType.from_numpy(x.dtype))


def test_matrix_product_in_float16_accumulates_in_float32() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((5, 70), (70, 3)))
    out = Tensor("y", (5, 3), F16)
    s = compute(
        out,
        lambda i, j, r: Binary(
            "mul",
            Cast(Load(tensor("a", a), (i, r)), F32),
            Cast(Load(tensor("b", b), (r, j)), F32),
        ),
        reduce=(70,),
        combiner="sum",
    )
    want = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16)
    np.testing.assert_allclose(one(s, {"a": a, "b": b}), want, rtol=2e-3)


def test_a_grid_larger_than_memory_allows_is_cut_into_blocks() -> None:
    x = np.arange(3000, dtype=np.float32)
    t = tensor("x", x)
    body = lambda i, j, r: Binary("mul", Load(t, (i,)), Binary("add", Load(t, (j,)), Cast(r, F32)))  # noqa: E731
    s = compute(Tensor("y", (3000, 3000), F32), body, reduce=(2,), combiner="max")
    np.testing.assert_array_equal(one(s, {"x": x}), x[:, None] * (x[None, :] + 1))


@pytest.mark.parametrize("combiner", ["sum", "prod", "max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32])
def test_reductions(combiner: str, dtype: Any) -> None:
    x = np.array([[3, 1, 4], [1, 5, -9]]).astype(dtype)
    position = combiner.startswith("arg")
    out = Tensor("y", (2,), I64 if position else DType.from_numpy(x.dtype))
    s = compute(out, lambda i, r: Load(tensor("x", x), (i, r)), reduce=(3,), combiner=combiner)
    want = getattr(np, combiner)(x.astype(np.float64), axis=1)
    np.testing.assert_array_equal(one(s, {"x": x}).astype(np.float64), want)


def test_nan_is_the_extreme_and_wins_argmax() -> None:
    x = np.array([1, np.nan, 3, np.nan], np.float32)
    for combiner in ("max", "min"):
        s = compute(
            Tensor("y", (), F32),
            lambda r: Load(tensor("x", x), (r,)),
            reduce=(4,),
            combiner=combiner,
        )
        assert np.isnan(one(s, {"x": x}))
    for combiner in ("argmax", "argmin"):
        s = compute(
            Tensor("y", (), I64),
            lambda r: Load(tensor("x", x), (r,)),
            reduce=(4,),
            combiner=combiner,
        )
        assert one(s, {"x": x}) == 1


@pytest.mark.parametrize(
    ("combiner", "dtype", "want"),
    [
        ("sum", F32, 0),
        ("prod", F32, 1),
        ("max", F32, -np.inf),
        ("min", DType.I32, 2**31 - 1),
        ("any", BOOL, False),
        ("all", BOOL, True),
        ("argmax", F32, 0),
    ],
)
def test_a_reduction_over_nothing_is_the_identity(combiner: str, dtype: DType, want: Any) -> None:
    out = Tensor("y", (2,), I64 if combiner == "argmax" else dtype)
    body: Expr = const(False if dtype is BOOL else 5, dtype)
    found = one(compute(out, lambda i, r: body, reduce=(0,), combiner=combiner), {})
    np.testing.assert_array_equal(found, np.full(2, want))


def test_zero_size_tensors() -> None:
    x = np.zeros((0, 3), np.float32)
    s = compute(Tensor("y", (3, 0), F32), lambda i, j: Load(tensor("x", x), (j, i)))
    assert one(s, {"x": x}).shape == (3, 0)


def test_the_other_side_of_a_select_need_not_be_in_bounds() -> None:
    x = np.arange(4, dtype=np.float32)
    t = tensor("x", x)

    def padded(i: Expr) -> Expr:
        j = Binary("sub", i, idx(2))
        inside = Binary("and", Binary("ge", j, idx(0)), Binary("lt", j, idx(4)))
        return Select(inside, Load(t, (j,)), const(-1.0, F32))

    found = one(compute(Tensor("y", (8,), F32), padded), {"x": x})
    np.testing.assert_array_equal(found, [-1, -1, 0, 1, 2, 3, -1, -1])


def test_and_stops_early() -> None:
    x = np.array([True, False])
    t = tensor("x", x)
    s = compute(
        Tensor("y", (4,), BOOL), lambda i: Binary("and", Binary("lt", i, idx(2)), Load(t, (i,)))
    )
    np.testing.assert_array_equal(one(s, {"x": x}), [True, False, False, False])


def test_an_index_from_data_is_checked_where_it_is_used() -> None:
    x, i = np.arange(3, dtype=np.float32), np.array([0, 7], np.int64)
    gather = compute(
        Tensor("y", (2,), F32),
        lambda k: Load(tensor("x", x), (Load(tensor("i", i), (k,)),)),
        origin="here",
    )
    with pytest.raises(
        IndexOutOfRangeError, match="index 7 is out of range for x of extent 3, at here"
    ):
        one(gather, {"x": x, "i": i})
    guarded = compute(
        gather.out,
        lambda k: Select(
            Binary("eq", k, idx(0)),
            Load(tensor("x", x), (Load(tensor("i", i), (k,)),)),
            const(9.0, F32),
        ),
    )
    np.testing.assert_array_equal(one(guarded, {"x": x, "i": i}), [0, 9])


def test_an_axis_that_leaves_its_tensor_is_our_error() -> None:
    x = np.arange(3, dtype=np.float32)
    s = compute(Tensor("y", (4,), F32), lambda i: Load(tensor("x", x), (i,)))
    with pytest.raises(VerificationError):
        one(s, {"x": x})


def test_values_are_checked() -> None:
    t = Tensor("x", (2,), F32)
    program = Program((t,), (), (), (t,))
    with pytest.raises(InputError, match="no value for 'x'"):
        evaluate(program, {})
    with pytest.raises(InputError, match=r"'x' should be float32\(2,\), got float64\(3,\)"):
        evaluate(program, {"x": np.zeros(3)})


def test_scatter_in_order_and_with_a_combiner() -> None:
    base = np.zeros(3, np.float32)
    where = np.array([2, 0, 2], np.int64)
    axis = Axis("i0", 3)
    for combiner, want in ((None, [2, 0, 3]), ("sum", [2, 0, 4]), ("max", [2, 0, 3])):
        s = Scatter(
            Tensor("y", (3,), F32),
            tensor("base", base),
            (axis,),
            (Load(tensor("where", where), (axis,)),),
            Cast(Binary("add", axis, idx(1)), F32),
            combiner,
        )
        np.testing.assert_array_equal(one(s, {"base": base, "where": where}), want)


def cumulative(n: int, **kw: Tensor) -> tuple[Loop, Tensor, Tensor]:
    """Sums x[0..i] for each i, starting from s0."""
    x, axis = Tensor("x", (n,), F32), Axis("l", n)
    s0, param, result, out = (Tensor(k, (), F32) for k in ("s0", "s", "s1", "total"))
    body = compute(result, lambda: Binary("add", Load(param, ()), Load(x, (axis,))))
    history = Tensor("history", (n,), F32)
    loop = Loop(axis, (Carry(s0, param, result, out),), (Stack(result, history),), (body,), **kw)
    return loop, out, history


def test_loop_carries_and_stacks() -> None:
    loop, out, history = cumulative(4)
    x = np.arange(4, dtype=np.float32)
    total, each = run(loop, (out, history), {"x": x, "s0": np.asarray(10, np.float32)})
    assert total == 16
    np.testing.assert_array_equal(each, [10, 11, 13, 16])


@pytest.mark.parametrize(("count", "want"), [(2, 11), (9, 16), (0, 10), (-1, 10)])
def test_loop_with_a_runtime_count(count: int, want: int) -> None:
    loop, out, history = cumulative(4, count=Tensor("n", (), I64))
    x = np.arange(4, dtype=np.float32)
    values = {"x": x, "s0": np.asarray(10, np.float32), "n": np.asarray(count)}
    total, each = run(loop, (out, history), values)
    assert total == want
    np.testing.assert_array_equal(each[max(0, min(count, 4)) :], 0)


def test_loop_as_long_as_a_predicate_holds() -> None:
    x0, x, x1, out = (Tensor(k, (), F32) for k in ("x0", "x", "x1", "y"))
    go0, go, go1, last = (Tensor(k, (), BOOL) for k in ("go0", "go", "go1", "last"))
    double = compute(x1, lambda: Binary("mul", Load(x, ()), const(2.0, F32)))
    small = compute(go1, lambda: Binary("lt", Load(x1, ()), const(100.0, F32)))
    carries = (Carry(x0, x, x1, out), Carry(go0, go, go1, last))
    loop = Loop(Axis("l", 50), carries, (), (double, small), None, go1)
    values = {"x0": np.asarray(3, np.float32), "go0": np.asarray(True)}
    assert run(loop, (out,), values)[0] == 192
    assert run(loop, (out,), {**values, "go0": np.asarray(False)})[0] == 3


def test_branch_runs_one_side() -> None:
    p, x = Tensor("p", (), BOOL), Tensor("x", (), F32)
    a, b, y = (Tensor(k, (), F32) for k in "aby")
    twice = compute(a, lambda: Binary("mul", Load(x, ()), const(2.0, F32)))
    half = compute(b, lambda: Binary("mul", Load(x, ()), const(0.5, F32)))
    s = Branch(p, (twice,), (half,), (BranchOut(a, b, y),))
    for taken, want in ((True, 8), (False, 2)):
        values = {"p": np.asarray(taken), "x": np.asarray(4, np.float32)}
        assert run(s, (y,), values)[0] == want


def test_weights_come_in_parts() -> None:
    w, y = Tensor("w", (2, 3), F32), Tensor("y", (3, 2), F32)
    s = compute(y, lambda i, j: Load(w, (j, i)))
    parts = {"a": np.zeros(3, np.float32), "b": np.ones(3, np.float32)}
    program = Program((), (Weight(w, ("a", "b"), 1),), (s,), (y,))
    np.testing.assert_array_equal(evaluate(program, parts)[0], [[0, 1]] * 3)


def test_integers_wrap_and_divide_by_zero_to_zero() -> None:
    a = np.array([127, -128, -7, 7, 5], np.int8)
    b = np.array([1, -1, 2, -2, 0], np.int8)
    want = {
        "add": [-128, 127, -5, 5, 5],
        "floordiv": [127, -128, -4, -4, 0],
        "mod": [0, 0, 1, -1, 0],
        "truncdiv": [127, -128, -3, -3, 0],
        "rem": [0, 0, -1, 1, 0],
        "ipow": [127, 0, 49, 0, 1],
    }
    for op, expected in want.items():
        np.testing.assert_array_equal(scalar.binary(op, a, b, DType.I8), expected, op)


def test_shifts_by_too_much_leave_nothing_but_the_sign() -> None:
    a, b = np.array([-8, 8, -8, 8], np.int32), np.array([1, 1, 40, -1], np.int32)
    np.testing.assert_array_equal(scalar.binary("shr", a, b, DType.I32), [-4, 4, -1, 0])
    np.testing.assert_array_equal(scalar.binary("shl", a, b, DType.I32), [-16, 16, 0, 0])


def test_casts() -> None:
    x = np.array([-1.7, 1.7, 0.0, -0.0], np.float32)
    np.testing.assert_array_equal(scalar.convert(x, DType.I32), [-1, 1, 0, 0])
    np.testing.assert_array_equal(scalar.convert(x, BOOL), [True, True, False, False])
    np.testing.assert_array_equal(scalar.convert(np.array([300, -1]), DType.U8), [44, 255])


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, F32, DType.F64])
def test_functions_are_rounded_to_their_type(dtype: DType) -> None:
    x = np.array([0.5, 0.75, 0.25]).astype(dtype.numpy)
    for op in (
        "exp",
        "tanh",
        "erf",
        "rsqrt",
        "lgamma",
        "asin",
        "round",
        "log2",
        "logistic",
        "one_plus_erf",
    ):
        assert scalar.unary(op, x, dtype).dtype == dtype.numpy
    exact = np.array([1.7724538509055159, 1.2254167024651776, 3.6256099082219087])
    found = np.exp(scalar.unary("lgamma", x.astype(np.float64), DType.F64))
    np.testing.assert_allclose(found, exact)


def test_float_operations_at_the_edges() -> None:
    inf, nan = np.inf, np.nan
    a = np.array([nan, 1.0, -0.0, inf, 1.0], np.float32)
    b = np.array([1.0, nan, 0.0, inf, 0.0], np.float32)
    np.testing.assert_array_equal(scalar.binary("max", a, b, F32)[:2], [nan, nan])
    np.testing.assert_array_equal(scalar.binary("min", a, b, F32)[:2], [nan, nan])
    np.testing.assert_array_equal(scalar.binary("sub", a, b, F32), [nan, nan, -0.0, nan, 1.0])
    np.testing.assert_array_equal(scalar.binary("div", a, b, F32), [nan, nan, nan, nan, inf])
    assert scalar.constant("-inf", F16) == -inf


def test_a_condition_of_bits_and_not() -> None:
    assert not scalar.unary("not", np.asarray(True), BOOL)
    assert scalar.unary("not", np.asarray(5), I64) == -6
    s = compute(Tensor("y", (), I64), lambda: Unary("not", cast(Const(5, DType.I32), I64)))
    assert one(s, {}) == -6
