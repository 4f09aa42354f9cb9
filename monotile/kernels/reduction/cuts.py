"""How a step without a product is computed: element by element, or reduced by some lanes an output."""

import math

import msgspec

from monotile.analysis.affine import contiguous_run, offset
from monotile.analysis.dependence import independent
from monotile.analysis.windows import sliding
from monotile.ir.expr import Axis, Load, loads
from monotile.ir.program import Compute, Scatter
from monotile.kernels.common.cost import SECTOR, each_thread_seconds
from monotile.plan.nodes import Map, Method, Reduce, Serial
from monotile.targets.model import fitted
from monotile.targets.target import Target

FEW_TERMS, MANY_TERMS = 64, 128  # of a reduction that one thread walks for several outputs at once
FEWEST_ACROSS, MOST_ACROSS = 2, 16  # threads with neighbouring vectors of a row: a sector, and more
MOST_BYTES = 8  # of a partial value
MOST_WORDS = (
    144  # registers of a thread's windows: what is looked at, what that is multiplied with, sums
)


def plain_method(s: Compute | Scatter, elements: int, workers: int, target: Target) -> Method:
    """elements: how many outputs `workers` workers compute together."""
    if isinstance(s, Scatter):
        apart = independent(s.index, s.axes)
        return Map() if len(apart) == len(s.axes) else Serial(tuple(sorted(apart)))
    if not s.reduce:
        return Map(_vector(s, s.axes[-1] if s.axes else None, target))
    inner = max(range(len(s.reduce)), key=lambda q: (_run(s, s.reduce[q]), q))
    order = (*(q for q in range(len(s.reduce)) if q != inner), inner)
    vector = _vector(s, s.reduce[inner], target)
    if not target.has.lockstep:
        return Reduce(1, vector, order)
    outputs = _side_by_side(s, elements, workers, target)
    if outputs > 1:
        return Reduce(1, 1, order, outputs)
    if (columns := _columns(s, order, elements, workers, target)) is not None:
        return columns
    # Neighbouring threads should read neighbouring elements: along the reduction, or along the outputs.
    # Where both will do, along the outputs: nothing is left to combine.
    near = _neighbours(s, s.axes[-1]) if s.axes else 1
    across = near > 1 and 2 * near >= _neighbours(s, s.reduce[inner])
    threads = target.threads * workers
    few = elements * target.warp * 4 <= threads
    wanted = -(-threads // max(elements, 1)) if across or few else target.warp
    most = target.threads if few else target.warp
    points = math.prod(r.extent for r in s.reduce)
    lanes = 1
    while lanes < min(wanted, most) and lanes * vector * 2 <= points:
        lanes *= 2
    return Reduce(lanes, vector, order)


def _side_by_side(s: Compute, elements: int, workers: int, target: Target) -> int:
    """Neighbouring outputs that a thread reduces at once, each load a vector: a window over channels that lie side by side. As many as
    leave a quarter of the threads something to do, all of them where there are many terms."""
    terms = math.prod(r.extent for r in s.reduce)
    if not s.axes or s.combiner in ("argmax", "argmin") or terms > MANY_TERMS:
        return 1
    width = _vector(s, s.axes[-1], target, stored=False)
    busy = target.threads * workers // (4 if terms <= FEW_TERMS else 1)
    while width > 1 and elements < width * busy:
        width //= 2
    return width


def _columns(
    s: Compute, order: tuple[int, ...], elements: int, workers: int, target: Target
) -> Reduce | None:
    """A long reduction across what lies side by side along the outputs: a vector times a matrix, row by row. Neighbouring threads read
    neighbouring vectors, as many as make a worker's share; the others have other rows."""
    terms = math.prod(r.extent for r in s.reduce)
    if not s.axes or s.combiner in ("argmax", "argmin") or terms <= MANY_TERMS:
        return None
    width = _vector(s, s.axes[-1], target, stored=False)
    if width == 1 or elements < FEWEST_ACROSS * width:
        return None
    if 2 * _neighbours(s, s.axes[-1]) < _neighbours(s, s.reduce[order[-1]]):
        return None
    across, share = FEWEST_ACROSS, elements / (workers * width)
    while across < MOST_ACROSS and (across < share or target.threads // across > terms // 2):
        across *= 2
    return Reduce(target.threads // across, 1, order, width)


def windowed(
    method: Method,
    s: Compute,
    elements: int,
    workers: int,
    along: int,
    after: float,
    target: Target,
) -> Method:
    """`method` with several windows a thread, where they overlap and it has registers for them. along: what they divide of the axis
    before the last. after: operations that follow an output."""
    found = sliding(s)
    if not isinstance(method, Reduce) or method.outputs == 1 or method.by_columns or found is None:
        return method
    terms = s.reduce[found.reduce].extent
    order = (*(q for q in method.order if q != found.reduce), found.reduce)
    words = method.outputs * s.body.dtype.itemsize // 4
    held = method.outputs * max(x.dtype.itemsize for x in loads(s.body)) // 4
    most = max(fitted(target.model.reduction).windows, terms)
    fitting = (
        msgspec.structs.replace(method, order=order, windows=n)
        for n in range(1, most + 1)
        if along % n == 0
        and (n == 1 or held * (found.reads(n, terms) + terms) + words * n <= MOST_WORDS)
    )
    return min(fitting, key=lambda m: each_thread_seconds(s, m, elements / workers, after, target))


def _run(s: Compute, axis: Axis) -> int:
    """The longest run along `axis` among the loads that vary with it."""
    runs = [contiguous_run(offset(x), axis, 8) for x in loads(s.body) if offset(x).mentions(axis)]
    return max(runs, default=1)


def _neighbours(s: Compute, axis: Axis) -> int:
    """How many threads along `axis` a sector of memory serves, of the load that is worst in this; of those alike for
    all, none is."""
    served = [SECTOR]
    for x in loads(s.body):
        where = offset(x)
        if where.mentions(axis):
            step = abs(where.coefficient(axis)) * x.dtype.itemsize or SECTOR
            served.append(max(1, SECTOR // step))
    return min(axis.extent, *served)


def _vector(s: Compute, axis: Axis | None, target: Target, *, stored: bool = True) -> int:
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


def method_scratch(method: Method, target: Target) -> int:
    """A reduction across warps leaves one partial value (and its position) a warp; of columns, one of each a warp."""
    match method:
        case Reduce(lanes, by_columns=True):
            across = target.threads // lanes
            return target.threads // target.warp * across * method.outputs * MOST_BYTES
        case Reduce(lanes) if lanes > target.warp:
            return 16 * target.threads
        case _:
            return 0
