"""Windows: how those of neighbouring outputs overlap."""

from monotile.analysis.windows import sliding
from monotile.ir.dtype import DType
from monotile.ir.expr import Binary, Expr, Load, Tensor, add, idx, mul
from monotile.ir.program import Compute, compute

F32 = DType.F32
TOKENS, WEIGHT = Tensor("x", (14 * 20, 8), F32), Tensor("w", (3, 5, 8), F32)


def windows(step: int = 1, dilation: int = 1) -> Compute:
    """3 x 5 windows over images of 14 x 20, whose places are one dimension."""

    def body(row: Expr, column: Expr, c: Expr, down: Expr, right: Expr) -> Expr:
        place = add(mul(add(row, down), idx(20)), add(mul(column, idx(step)), mul(right, idx(dilation))))  # fmt: skip
        return Binary("mul", Load(TOKENS, (place, c)), Load(WEIGHT, (down, right, c)))

    return compute(Tensor("y", (12, 4, 8), F32), body, reduce=(3, 5), combiner="sum")


def test_of_merged_places_those_beside_each_other_are_shared() -> None:
    found = sliding(windows())
    assert found is not None
    assert found.reduce == 1
    assert (found.step, found.dilation) == (1, 1)
    assert found.reads(4, 5) == 8


def test_places_between_dilated_terms_count_once_each() -> None:
    found = sliding(windows(dilation=2))
    assert found is not None
    assert found.reads(1, 5) == 5
    assert found.reads(2, 5) == 10
    assert found.reads(3, 5) == 11
    wide = sliding(windows(step=4, dilation=1))
    assert wide is not None
    assert wide.reads(3, 5) == 13
