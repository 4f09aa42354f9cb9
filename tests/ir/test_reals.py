"""Where coordinates lie: every value that an expression of axes takes is inside."""

import math

import pytest

from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Cast, Expr, Load, Tensor, Unary, const, idx
from monotile.ir.intervals import Interval, interval
from tests.ir.test_intervals import GRID, value

A = Axis("i0", 6)


def place(ratio: float, dtype: DType) -> Expr:
    """Of an element in a smaller image, as interpolation has it."""
    centre = Binary("add", Cast(A, dtype), const(0.5, dtype))
    at = Binary("sub", Binary("mul", centre, const(ratio, dtype)), const(0.5, dtype))
    return Binary("max", at, const(0.0, dtype))


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32, DType.F64])
@pytest.mark.parametrize("ratio", [1.0, 0.5, 1 / 3, 2.7, -1.3])
def test_coordinates(ratio: float, dtype: DType) -> None:
    assert GRID["i0"].max() == A.extent - 1
    for e in (place(ratio, dtype), Unary("floor", place(ratio, dtype)), Unary("neg", place(ratio, dtype))):  # fmt: skip
        found = interval(Cast(e, DType.I64))
        assert found is not None
        assert all(found.lo <= v <= found.hi for v in value(Cast(e, DType.I64)))
        assert found.hi - found.lo <= 6 * abs(ratio) + 2


def test_what_is_not_known() -> None:
    whole = Interval(-(2**63), 2**63 - 1)
    loaded = Load(Tensor("t", (), DType.F32), ())
    assert interval(Cast(loaded, DType.I64)) == whole
    assert interval(Cast(Binary("max", loaded, const(0.0, DType.F32)), DType.I64)) == whole
    for x in (math.inf, math.nan, 1e30):
        assert interval(Cast(const(x, DType.F32), DType.I64)) == whole
    none = Binary("div", const(1.0, DType.F32), Cast(idx(0), DType.F32))
    assert interval(Cast(none, DType.I64)) == whole
