"""Which axes belong to which factor of a sum of products."""

from monotile.analysis.contraction import contraction
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Expr, Load, Select, Tensor, add, cast, const, idx, mul
from monotile.ir.program import Compute, compute

F32 = DType.F32


def grouped(channels: int, each: int, *, last: bool = False) -> Compute:
    """Output channel o, in groups of `each`, reads the two inputs of its group at every position."""
    groups = channels // each
    x, w = Tensor("x", (2 * groups, 10), F32), Tensor("w", (channels, 2), F32)

    def body(o: Axis, p: Axis, c: Axis) -> Expr:
        group = Binary("floordiv", o, idx(each))
        return mul(Load(x, (add(mul(group, idx(2)), c), p)), Load(w, (o, c)))

    shape = (10, channels) if last else (channels, 10)
    product = (lambda p, o, c: body(o, p, c)) if last else body
    return compute(Tensor("y", shape, F32), product, reduce=(2,), combiner="sum")


def test_the_channels_of_a_grouped_convolution_are_rows_in_runs() -> None:
    found = contraction(grouped(24, 6))
    assert found is not None
    assert (found.batch, found.m, found.n, found.grains) == ((), (0,), (1,), ((0, 6),))
    found = contraction(grouped(24, 6, last=True))
    assert found is not None
    assert (found.batch, found.m, found.n, found.grains) == ((), (0,), (1,), ((1, 6),))


def test_an_axis_of_both_factors_is_a_batch() -> None:
    x, w = Tensor("x", (8, 5), F32), Tensor("w", (8, 5, 3), F32)
    c = compute(
        Tensor("y", (8, 3), F32),
        lambda b, n, k: mul(Load(x, (b, k)), Load(w, (b, k, n))),
        reduce=(5,),
        combiner="sum",
    )
    found = contraction(c)
    assert found is not None
    assert (found.batch, found.m, found.n, found.grains) == ((0,), (), (1,), ())


def test_runs_must_fill_the_axis() -> None:
    found = contraction(grouped(26, 6))
    assert found is not None
    assert (found.batch, found.grains) == ((0,), ())


def test_padding_does_not_widen() -> None:
    """Casts of 16-bit values are looked through where a selection fills places with zeros; of other values it may not be."""
    x, w = Tensor("x", (10,), DType.F16), Tensor("w", (4, 3), DType.F16)

    def body(fill: float) -> Compute:
        def padded(o: Axis, p: Axis, k: Axis) -> Expr:
            at = add(p, k)
            inside = Binary("lt", at, idx(10))
            return mul(
                Select(inside, cast(Load(x, (at,)), F32), const(fill, F32)),
                cast(Load(w, (o, k)), F32),
            )

        return compute(Tensor("y", (4, 10), F32), padded, reduce=(3,), combiner="sum")

    found, other = contraction(body(0.0)), contraction(body(0.1))
    assert found is not None
    assert other is not None
    assert (found.left.dtype, found.right.dtype) == (DType.F16, DType.F16)
    assert {other.left.dtype, other.right.dtype} == {DType.F16, F32}
