"""Candidates for cutting a reduction into tasks, and the number of lanes that share an output."""

import functools
import math
from collections.abc import Iterator

import msgspec

from monotile.analysis.affine import contiguous_run, offset
from monotile.analysis.encoding import coded_sides
from monotile.analysis.ends import segment_ends, share_of_terms
from monotile.analysis.windows import sliding
from monotile.choice.digest import digest_statements
from monotile.ir.expr import Axis, loads
from monotile.ir.program import Compute
from monotile.kernels.common import cost, flat
from monotile.kernels.common.cost import SECTOR, Access, Extents
from monotile.kernels.common.product import HALVES, product_of
from monotile.kernels.common.vectors import widest
from monotile.kernels.draft import Context, Draft
from monotile.kernels.family import RowSite
from monotile.kernels.group import Group
from monotile.kernels.reduction.cost import access, each_thread_seconds
from monotile.kernels.reduction.method import Reduce, ReduceMoments
from monotile.kernels.reduction.slots import why_not_several
from monotile.plan.nodes import Dim, Step
from monotile.targets.model import fitted
from monotile.targets.target import Target

# What a group of lanes has at once.
MOST_TOGETHER = 16  # neighbouring outputs
MOST_PARTS = 32  # outputs of all its runs
MOST_LOADED = 128  # registers of a thread for what it loads from memory
MOST_UNROLLED = 8  # iterations; all of them if there are at most twice as many
MOST_INSTRUCTIONS = 2048  # of straight-line code, about: more takes compilers long
SIDE_BY_SIDE = (
    64  # a group that reads so many contiguous bytes needs no coalescing with its neighbour
)

# Of a thread that reduces alone.
MOST_STRAIGHT = 10  # terms in straight-line code; of several windows twice as many
AT_ONCE = 8  # unroll factor of a longer axis, whose loads are in flight together

FEW_ALONE = 16  # unvectorised terms, up to which single threads reduce if half of the threads have an output
FEW_TERMS, MANY_TERMS = 64, 128  # of a reduction of which one thread has several outputs
FEWEST_ACROSS, MOST_ACROSS = 2, 16  # threads with neighbouring vectors of a row: from one sector on
MOST_BYTES = 8  # of a partial value
MOMENTS_BYTES = 16  # of one of a sum and its squares
MOST_WORDS = 144  # registers of a thread's windows: image, factors, sums


def cut(group: Group, context: Context) -> Iterator[Draft]:
    """Drafts of a reduction as a stage: by lanes along the reduction, by columns, or in windows; none if the group is not a single reduction."""
    step, target = group.steps[0], context.target
    anchor = step[0]
    if len(group.steps) != 1 or not isinstance(anchor, Compute) or not anchor.reduce:
        return
    total, after = math.prod(a.extent for a in anchor.axes), cost.following(step, target)
    method = choose(anchor, total, target.workers, target)
    if len(anchor.axes) > 1:
        along = anchor.axes[-2].extent
        method = windowed(method, anchor, total / target.workers, along, after, context)
    scratch = scratch_bytes(method, target)

    def accesses(extents: Extents) -> Access:
        return access(anchor, method, extents, after, target)

    if not anchor.axes:
        yield flat.draft(group, (), method, context, accesses, scratch)
    elif method.windows > 1:
        for dims in _window_dims(anchor, method, target):
            yield flat.draft(group, dims, method, context, accesses, scratch)
    else:
        if dims := _whole_rows(anchor, method, target):
            yield flat.draft(group, dims, method, context, accesses, scratch)
        at_once = max(1, target.threads // method.lanes) * method.outputs
        yield from flat.flat(group, method, context, at_once, method.outputs, accesses, scratch)


def in_rows(site: RowSite, context: Context) -> tuple[Step, float] | None:
    """The reduction as a step of a task with several steps, with its cost; None if it cannot be."""
    anchor, target = site.anchor, context.target
    if not isinstance(anchor, Compute) or not anchor.reduce or _decodes_again(anchor, context):
        return None
    extents, after = site.extents, cost.following(site.step, target)
    total = cost.product(extents, anchor.axes)
    method = choose(anchor, total, 1, target)
    if method.outputs > 1:
        outputs = min(method.outputs, flat.innermost(site))
        method = msgspec.structs.replace(method, outputs=outputs)
        if len(anchor.axes) > 1:
            before, lead = anchor.axes[-2], site.lead.get(len(anchor.axes) - 2, 0)
            along = math.gcd(before.extent, extents[before.name], lead)
            whole = not lead and extents[before.name] == before.extent
            method = windowed(method, anchor, total, along, after, context, odd=whole)
    scratch = scratch_bytes(method, target)
    return flat.in_rows(
        site, method, context, lambda e: access(anchor, method, e, after, target), scratch
    )


def _decodes_again(c: Compute, context: Context) -> bool:
    """Whether `c` multiplies several rows with a matrix of codes, which each output would decode again, and tensor cores can compute it
    instead."""
    if "mma.sync" not in context.target.instructions or not coded_sides(c):
        return False
    if any(x.axis in c.reduce and not x.at for x in c.live):
        return False  # reductions walk the terms up to one end
    found = product_of(c, context)
    return found is not None and found.dtype in HALVES


def choose(s: Compute, elements: int, workers: int, target: Target) -> Reduce:
    """The method for a reduction whose `elements` outputs are computed by `workers` workers together."""
    inner = max(range(len(s.reduce)), key=lambda q: (_run(s, s.reduce[q]), q))
    order = (*(q for q in range(len(s.reduce)) if q != inner), inner)
    vector = widest(s, s.reduce[inner], target) if segment_ends(s) is None else 1
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
    points = _terms(s)
    short = vector == 1 and points <= FEW_ALONE and 2 * elements >= threads
    wanted = -(-threads // max(elements, 1)) if across or few else target.warp
    most = target.threads if few else target.warp
    lanes = 1
    while not short and lanes < min(wanted, most) and lanes * vector * 2 <= points:
        lanes *= 2
    return Reduce(lanes, vector, order)


def _side_by_side(s: Compute, elements: int, workers: int, target: Target) -> int:
    """The number of neighbouring outputs that a thread reduces at once, with vector loads, as for windows over contiguous channels. As many
    as leave a quarter of the threads busy, or all threads where there are many terms."""
    terms = _terms(s)
    if not s.axes or not _same_terms(s) or s.combiner in ("argmax", "argmin") or terms > MANY_TERMS:
        return 1
    width = widest(s, s.axes[-1], target, stored=False)
    busy = target.threads * workers // (4 if terms <= FEW_TERMS else 1)
    while width > 1 and elements < width * busy:
        width //= 2
    return width


def _columns(
    s: Compute, order: tuple[int, ...], elements: int, workers: int, target: Target
) -> Reduce | None:
    """The method of a long reduction whose outputs are contiguous: a vector times a matrix, row by row. Neighbouring threads have
    neighbouring vectors, as many as a worker's share; the other threads have other rows. None if this does not fit."""
    terms = _terms(s)
    if (
        not s.axes
        or not _same_terms(s)
        or s.combiner in ("argmax", "argmin")
        or terms <= MANY_TERMS
    ):
        return None
    width = widest(s, s.axes[-1], target, stored=False)
    if width == 1 or elements < FEWEST_ACROSS * width:
        return None
    if 2 * _neighbours(s, s.axes[-1]) < _neighbours(s, s.reduce[order[-1]]):
        return None
    across, share = FEWEST_ACROSS, elements / (workers * width)
    while across < MOST_ACROSS and (across < share or target.threads // across > terms // 2):
        across *= 2
    return Reduce(target.threads // across, 1, order, width)


def windowed(
    method: Reduce,
    s: Compute,
    elements: float,
    along: int,
    after: float,
    context: Context,
    *,
    odd: bool = False,
) -> Reduce:
    """`method` with several windows per thread, where windows overlap and registers suffice. elements: outputs of a worker. along: the
    number of windows has to divide this part of the axis before the last. after: operations that follow an output. odd: a task has the
    whole axis, so its last windows may begin earlier if nothing divides it."""
    found = sliding(s)
    if method.outputs == 1 or method.by_columns or found is None or s.live or segment_ends(s):
        return method
    target = context.target
    terms, most = s.reduce[found.reduce].extent, fitted(target.model.reduction).windows
    order = (*(q for q in method.order if q != found.reduce), found.reduce)
    words = method.outputs * s.body.dtype.itemsize // 4
    held = method.outputs * max(x.dtype.itemsize for x in loads(s.body)) // 4
    fitting = [
        n
        for n in range(2, min(along, max(most, terms)) + 1)
        if held * (found.reads(n, terms) + terms) + words * n <= MOST_WORDS
    ]
    whole = [n for n in fitting if along % n == 0]
    counts = (1, *(whole or (fitting if odd else ())))
    best = context.choose(
        "windows",
        [msgspec.structs.replace(method, order=order, windows=n) for n in counts],
        shape=lambda: digest_statements((s,), context.tables, method, elements, along, after, odd),
        cost=lambda m: each_thread_seconds(s, m, elements, after, target),
        value=lambda m: m.windows,
    )
    assert best is not None  # one window always fits
    return best


def _window_dims(s: Compute, method: Reduce, target: Target) -> Iterator[tuple[Dim, Dim]]:
    """One task per worker: the last axis whole or in parts of whole sectors, and the worker's share of the other axes."""
    *before, last = s.axes
    rows = math.prod(a.extent for a in before)
    least = max(method.outputs, cost.SECTOR // s.out.dtype.itemsize)
    parts = 1
    while parts == 1 or (last.extent % (parts * least) == 0 and parts <= target.workers):
        tile = -(-rows * parts // target.workers)
        yield (
            Dim(tuple(range(len(before))), rows, min(rows, cost.round_up(tile, method.windows)), 0),
            Dim((len(before),), last.extent, last.extent // parts, 1),
        )
        parts *= 2


def _whole_rows(s: Compute, method: Reduce, target: Target) -> tuple[Dim, ...]:
    """The dims of one task per worker with whole rows, whose columns share the ends of a segmented reduction: a thread with several columns
    reads these once. () if a thread cannot have several, or there are too few rows."""
    if method.lanes > 1 or method.outputs == 1 or segment_ends(s) is None or s.live:
        return ()
    *before, last = s.axes
    rows = math.prod(a.extent for a in before)
    if rows < target.workers or why_not_several(s):
        return ()
    tile = -(-rows // target.workers)
    outer = Dim(tuple(range(len(before))), rows, tile, 0)
    return outer, Dim((len(before),), last.extent, last.extent, None)


def _same_terms(s: Compute) -> bool:
    """Whether neighbouring outputs along the last axis have the same terms."""
    ends, last = segment_ends(s), s.axes[-1]
    return last not in flat.runs_of(s) and (ends is None or last not in ends.axes)


def _terms(s: Compute) -> float:
    """The number of terms of one output."""
    return math.prod(r.extent for r in s.reduce) * share_of_terms(s)


@functools.lru_cache(maxsize=4096)
def _run(s: Compute, axis: Axis) -> int:
    """The longest contiguous run along `axis` among the loads that vary with it."""
    runs = [contiguous_run(offset(x), axis, 8) for x in loads(s.body) if offset(x).mentions(axis)]
    return max(runs, default=1)


@functools.lru_cache(maxsize=4096)
def _neighbours(s: Compute, axis: Axis) -> int:
    """How many threads along `axis` share a sector of memory, for the load with the fewest; loads that do not vary with it do not count."""
    served = [SECTOR]
    for x in loads(s.body):
        where = offset(x)
        if where.mentions(axis):
            step = abs(where.coefficient(axis)) * x.dtype.itemsize or SECTOR
            served.append(max(1, SECTOR // step))
    return min(axis.extent, *served)


def scratch_bytes(method: Reduce, target: Target) -> int:
    """On-chip bytes for combining partial results: across warps one value (and its position) per warp; by columns, one for each output and
    warp."""
    if method.by_columns:
        across = target.threads // method.lanes
        each = MOMENTS_BYTES if isinstance(method, ReduceMoments) else MOST_BYTES
        return target.threads // target.warp * across * method.outputs * each
    return 16 * target.threads if method.lanes > target.warp else 0
