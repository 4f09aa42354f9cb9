"""Vector widths: how many neighbours a thread processes at once."""

import math
from collections.abc import Sequence

from monotile.analysis.affine import constant_run, contiguous_run, offset, window_run
from monotile.ir.expr import Axis, Load, axes_of, loads
from monotile.ir.program import Compute, Scatter
from monotile.plan.nodes import Dim
from monotile.targets.target import Target

LITTLE = 8  # least results per element of a small tensor, whose elements are loaded one by one


def fitting(wanted: int, *sizes: int) -> int:
    """The largest power of two up to `wanted` that divides all `sizes`."""
    width = 1
    while width * 2 <= wanted and all(s % (width * 2) == 0 for s in sizes):
        width *= 2
    return width


def exact_width(wanted: int, s: Compute | Scatter, dims: Sequence[Dim]) -> int:
    """The number of neighbours along the last axis that a thread processes at once, up to `wanted`; 1 unless the last dim's innermost axis
    is that axis."""
    if not dims or not s.axes:
        return 1
    last = dims[-1]
    if not last.axes or last.axes[-1] != len(s.axes) - 1:
        return 1
    return fitting(wanted, last.tile, last.extent, last.lead, s.axes[-1].extent)


def elements(dims: Sequence[Dim]) -> int:
    """The number of elements of a whole tile."""
    return math.prod(d.extent if d.stage is None else d.tile + d.lead for d in dims)


def narrowed(width: int, elements: int, threads: int) -> int:
    """The vector width with the fewest iterations, narrower where threads would be idle. elements: of all threads."""
    while width > 1 and elements * 2 // width <= threads:
        width //= 2
    return width


def widest(
    s: Compute, axis: Axis | None, target: Target, *, stored: bool = True, pieces: bool = False
) -> int:
    """Elements that one thread processes at once: the widest access that every load allows, and the store, if the value is stored as it is.
    Gathered elements are loaded one by one, whatever the width; so are non-contiguous ones, if they are few relative to the results.
    pieces: whether neighbours may be in any order in a vector."""
    if axis is None:
        return 1
    found = dict.fromkeys(x for x in loads(s.body) if offset(x).mentions(axis))
    little = s.out.size // LITTLE if axis in s.axes and stored and target.has.lockstep else 0
    moved = [
        x
        for x in found
        if not _looked_up(x, axis, target) and not (x.tensor.size <= little and _apart(x, axis))
    ]
    near = [x for x in moved if constant_run(offset(x), axis, target.vector_bytes) == 1]
    width = max((x.dtype.itemsize for x in near), default=s.out.dtype.itemsize)
    if axis in s.axes and stored:
        width = max(width, s.out.dtype.itemsize)
    limit = max(1, target.vector_bytes // width)
    runs = (
        max(
            contiguous_run(offset(x), axis, limit),
            constant_run(offset(x), axis, limit),
            _near(x, axis, limit, target) if pieces else 1,
        )
        for x in moved
    )
    return max(1, min([limit, axis.extent & -axis.extent or 1, *runs]))


def _near(x: Load, axis: Axis, limit: int, target: Target) -> int:
    """Neighbours along the axis that are in one vector of `x`, in any order."""
    if not target.has.lockstep or any(map(loads, x.index)):
        return 1
    return window_run(offset(x), axis, limit, target.vector_bytes // x.dtype.itemsize)


def _apart(x: Load, axis: Axis) -> bool:
    """Whether neighbours along the axis are not contiguous in `x`."""
    where = offset(x)
    return contiguous_run(where, axis, 2) == 1 and constant_run(where, axis, 2) == 1


def _looked_up(x: Load, axis: Axis, target: Target) -> bool:
    """Whether the address of each neighbour along the axis is data-dependent."""
    named = any(axis in axes_of(y) for i in x.index for y in loads(i))
    return named and contiguous_run(offset(x), axis, target.vector_bytes) == 1
