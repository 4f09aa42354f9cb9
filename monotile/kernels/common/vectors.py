"""How many neighbours a thread takes at once."""

from monotile.analysis.affine import contiguous_run, offset
from monotile.ir.expr import Axis, Load, loads
from monotile.ir.program import Compute
from monotile.targets.target import Target


def fitting(wanted: int, *sizes: int) -> int:
    """The largest power of two up to `wanted` that divides all `sizes`."""
    width = 1
    while width * 2 <= wanted and all(s % (width * 2) == 0 for s in sizes):
        width *= 2
    return width


def narrowed(width: int, elements: int, threads: int) -> int:
    """Neighbours that a thread takes at once: as few turns, with narrower vectors where threads would stand idle."""
    while width > 1 and elements * 2 // width <= threads:
        width //= 2
    return width


def widest(s: Compute, axis: Axis | None, target: Target, *, stored: bool = True) -> int:
    """Elements one thread takes at once: the widest access that every load allows, and the store, if the value is stored as it is."""
    if axis is None:
        return 1
    moved: list[Load] = [x for x in loads(s.body) if offset(x).mentions(axis)]
    width = max((x.dtype.itemsize for x in moved), default=s.out.dtype.itemsize)
    if axis in s.axes and stored:
        width = max(width, s.out.dtype.itemsize)
    limit = max(1, target.vector_bytes // width)
    runs = [contiguous_run(offset(x), axis, limit) for x in moved]
    return max(1, min([limit, axis.extent & -axis.extent or 1, *runs]))
