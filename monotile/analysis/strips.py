"""Concatenations along the last dimension, as selections between loads."""

from monotile.analysis.affine import affine
from monotile.analysis.masked import choice
from monotile.ir.expr import Expr, Load, Tensor, loads


def parts(e: Expr) -> dict[Tensor, int] | None:
    """The tensors between which `e` selects, each with its first column; None if they are not adjacent along the last dimension."""
    found = [x.load for x in choice(e) or ()]
    if (
        len(found) < 2
        or not all(x.index for x in found)
        or any(loads(i) for x in found for i in x.index)
    ):
        return None
    if len({x.tensor.name for x in found}) < len(found) or len({_rows(x) for x in found}) > 1:
        return None
    last = [affine(x.index[-1]) for x in found]
    if len({frozenset(a.terms) for a in last}) > 1:
        return None
    return {x.tensor: -a.constant for x, a in zip(found, last, strict=True)}


def _rows(x: Load) -> tuple[object, ...]:
    """Equal for loads from one row, whatever the column."""
    t = x.tensor
    return (t.dtype, t.shape[:-1], tuple(affine(i).expr for i in x.index[:-1]), len(x.index))
