"""Candidates for cutting transposed copies into tasks."""

import math
from collections.abc import Iterator

import msgspec

from monotile.analysis.affine import contiguous_run, offset
from monotile.ir.expr import loads
from monotile.ir.program import Compute
from monotile.kernels.common.cost import round_up
from monotile.kernels.common.vectors import fitting
from monotile.kernels.draft import Context, Draft
from monotile.kernels.group import Group
from monotile.kernels.transpose.match import axes_after_last, together
from monotile.kernels.transpose.method import Interleave, Transpose, TransposeTiles
from monotile.plan.nodes import Dim, Stage, Step
from monotile.transform.layout.copies import MOST_BEHIND

LEAST_BYTES = 8  # of a vector in tiles
TILES = (128, 64)  # rows and columns of a tile: the larger one has more loads in flight
EACH = 3  # least tasks per worker for the larger one
MOST_INTERLEAVED = 8  # largest last axis of which a thread has all values


def cut(group: Group, context: Context) -> Iterator[Draft]:
    """One draft, or none."""
    if len(group.steps) == 1:
        found = (
            _transposed(group, context) or _interleaved(group, context) or _in_tiles(group, context)
        )
        if found is not None:
            yield found


def _transposed(group: Group, context: Context) -> Draft | None:
    """A copy in another order of axes, if the contiguous part that a thread reads is whole vectors and fits into registers. A task is one
    vector per thread: copies that wait for nothing run in parallel on other workers."""
    step = group.steps[0]
    anchor, target = step[0], context.target
    behind = axes_after_last(anchor) if isinstance(anchor, Compute) else ()
    between = math.prod(anchor.axes[p].extent for p in behind)
    vector = target.vector_bytes // anchor.out.dtype.itemsize
    whole = anchor.axes and anchor.axes[-1].extent % vector == 0
    if not target.has.coalescing or not 1 < between <= MOST_BEHIND or not whole:
        return None
    rest = tuple(p for p in range(len(anchor.axes)) if p not in behind)
    extent = math.prod(anchor.axes[p].extent for p in rest)
    size = (
        between * anchor.out.dtype.itemsize
    )  # bytes of an element with the axes after it in the operand
    room = vector * max(1, target.shared_bytes // (size * vector))
    dims = (
        Dim(rest, extent, min(extent, vector * target.threads, room), 0),
        Dim(behind, between, between, None),
    )
    grid = (-(-extent // dims[0].tile),)
    names, scratch = tuple(s.out.name for s in step), dims[0].tile * size
    done = Step(names, dims, Transpose(vector, 1), barrier=True, scratch_bytes=scratch)
    moved = 2 * scratch / target.worker_bandwidth
    waves = -(-grid[0] // target.workers)
    return Draft(group, grid, (done,), {}, scratch, waves * (target.latency_seconds + moved))


def _interleaved(group: Group, context: Context) -> Draft | None:
    """A copy with a short last axis, if all operands are contiguous along the axis before it, as from a channels-first to a channels-last
    image. One task per worker."""
    step = group.steps[0]
    anchor, target = step[0], context.target
    if not target.has.coalescing or not isinstance(anchor, Compute):
        return None
    if anchor.reduce or len(step) > 1:
        return None
    if len(anchor.axes) < 2 or not 1 < anchor.axes[-1].extent <= MOST_INTERLEAVED:
        return None
    *before, along, last = anchor.axes
    vector = fitting(target.vector_bytes // anchor.out.dtype.itemsize, along.extent)
    if vector == 1 or vector * anchor.out.dtype.itemsize < LEAST_BYTES:
        return None
    read = [x for x in loads(anchor.body) if offset(x).mentions(along)]
    runs = [contiguous_run(offset(x), along, vector) for x in read]
    near = all(contiguous_run(offset(x), last, 2) > 1 for x in read if offset(x).mentions(last))
    if near or any(run < vector for run in runs):
        return None
    rows = math.prod(a.extent for a in (*before, along))
    tile = min(rows, round_up(-(-rows // target.workers), vector))
    dims = (
        Dim(tuple(range(len(before) + 1)), rows, tile, 0),
        Dim((len(before) + 1,), last.extent, last.extent, None),
    )
    done = Step(tuple(s.out.name for s in step), dims, Interleave(vector))
    moved = 2 * tile * last.extent * anchor.out.dtype.itemsize / target.worker_bandwidth
    return Draft(group, (-(-rows // tile),), (done,), {}, 0, target.latency_seconds + moved)


def _in_tiles(group: Group, context: Context) -> Draft | None:
    """A copy that exchanges large axes: tiles of both, through on-chip memory. Axes that are adjacent in both orders count as one."""
    step = group.steps[0]
    anchor, target = step[0], context.target
    behind = axes_after_last(anchor) if isinstance(anchor, Compute) else ()
    if not target.has.coalescing or not behind or len(step) > 1:
        return None
    last, other = len(anchor.axes) - 1, together(behind)
    size = anchor.out.dtype.itemsize
    sides = [anchor.axes[last].extent, math.prod(anchor.axes[p].extent for p in other)]
    vector = fitting(target.vector_bytes // size, *sides)
    if vector * size < LEAST_BYTES or min(sides) < TILES[-1] // 2:
        return None
    rest = tuple(p for p in range(last) if p not in other)
    count = math.prod(anchor.axes[p].extent for p in rest)

    def tasks(extent: int) -> int:
        return count * math.prod(-(-n // extent) for n in sides)

    extent = next((e for e in TILES[:-1] if tasks(e) >= EACH * target.workers), TILES[-1])
    dims = (
        *((Dim(rest, count, 1, 0),) if rest else ()),
        *(
            Dim(axes, n, min(n, extent), k + (1 if rest else 0))
            for k, (axes, n) in enumerate(zip((other, (last,)), reversed(sides), strict=True))
        ),
    )
    grid = tuple(-(-d.extent // d.tile) for d in dims)
    method = TransposeTiles(vector, len(dims) - 1, len(dims) - 2, extent)
    scratch = extent * extent * size
    names = tuple(s.out.name for s in step)
    done = Step(names, dims, method, scratch=0, scratch_bytes=scratch)
    moved = 2 * extent * extent * size / target.worker_bandwidth
    waves = -(-math.prod(grid) // target.workers)
    return Draft(group, grid, (done,), {}, scratch, waves * (target.latency_seconds + moved))


def finer(stage: Stage, threads: int) -> Stage:
    """`stage` with tasks for `threads` threads, cut along the first dim of its step."""
    (step,) = stage.steps
    method, (rest, behind) = step.method, step.dims
    assert isinstance(method, Transpose)
    tile = min(rest.tile, method.vector * threads)
    step = msgspec.structs.replace(step, dims=(msgspec.structs.replace(rest, tile=tile), behind))
    return msgspec.structs.replace(stage, grid=(-(-rest.extent // tile),), steps=(step,))
