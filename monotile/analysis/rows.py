"""Computes that copy a row of another tensor."""

from monotile.ir.expr import Const, Expr, Load, Tensor
from monotile.ir.program import Compute


def copied_row(s: Compute) -> tuple[Tensor, tuple[Expr, ...]] | None:
    """The tensor and the leading indices of the row that `s` copies whole and unchanged; None where it copies none."""
    if s.combiner is not None or not isinstance(s.body, Load):
        return None
    whole, index = s.body.tensor, s.body.index
    count = len(whole.shape) - len(s.axes)
    if count <= 0 or whole.dtype is not s.out.dtype or whole.shape[count:] != s.out.shape:
        return None
    for axis, i in zip(s.axes, index[count:], strict=True):
        if i != axis and not (axis.extent == 1 and isinstance(i, Const)):
            return None
    return whole, index[:count]
