"""Recognises copies that permute axes."""

import math

from monotile.analysis.affine import affine
from monotile.ir.expr import Axis, Expr, Load, Unary, axes_of
from monotile.ir.program import Compute, Scatter
from monotile.transform.layout.copies import MOST_BEHIND


def copied(s: Compute) -> Load | None:
    """The load that `s` copies, unchanged or rounded to TF32 (`transform/legalise/round_factors.py`); None if `s` is no copy."""
    match s:
        case Compute(combiner=None, body=Load() as x) | Compute(combiner=None, body=Unary("to_tf32", Load() as x)):  # fmt: skip
            return x
        case _:
            return None


def axes_after_last(s: Compute) -> tuple[int, ...]:
    """Positions of the axes that come after the last axis of `s` in the operand's memory order. () unless `s` is a copy whose operand has
    each of them, and the last axis, as a whole dimension of its own."""
    x = copied(s)
    if x is None or not s.axes:
        return ()
    dims = [part for d in zip(x.index, x.tensor.shape, strict=True) for part in _parts(*d)]
    last, index = s.axes[-1], [i for i, _ in dims]
    if x.dtype is not s.out.dtype or last not in index:
        return ()
    start = index.index(last)
    known = [axes_of(i) for i in index]
    position = {a: p for p, a in enumerate(s.axes)}
    found: list[int] = []
    for i, extent in dims[start:]:
        if not isinstance(i, Axis) or i not in position or i.extent != extent:
            return ()
        if sum(i in axes for axes in known) > 1:
            return ()
        found.append(position[i])
    return tuple(found[1:])


def _parts(index: Expr, extent: int) -> list[tuple[Expr, int]]:
    """A dimension that is indexed by several axes, row-major, as one dimension per axis; any other as it is."""
    where = affine(index)
    terms = sorted(where.terms, key=lambda t: -t[1])
    inside = 1
    for axis, step in reversed(terms):
        if not isinstance(axis, Axis) or step != inside:
            return [(index, extent)]
        inside *= axis.extent
    if where.constant or inside != extent:
        return [(index, extent)]
    return [(axis, axis.extent) for axis, _ in terms if isinstance(axis, Axis)]


def goes_through_tiles(s: Compute | Scatter) -> bool:
    """Whether `s` is a transposing copy that needs on-chip tiles, as its elements are further apart in memory than a thread can hold.
    Statements fused into it would be read or written element by element."""
    behind = axes_after_last(s) if isinstance(s, Compute) else ()
    return math.prod(s.axes[p].extent for p in behind) > MOST_BEHIND


def together(behind: tuple[int, ...]) -> tuple[int, ...]:
    """The last of these positions, with those before it that are adjacent."""
    start = max(0, len(behind) - 1)
    while start and behind[start - 1] == behind[start] - 1:
        start -= 1
    return behind[start:]
