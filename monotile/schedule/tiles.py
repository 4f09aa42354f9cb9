"""Tile shapes: constructed, aligned to the hardware, ranked by the cost model (Roller)."""

import itertools
import math
from collections.abc import Iterator

from monotile.analysis.affine import contiguous_run, offset
from monotile.analysis.contraction import contraction
from monotile.analysis.reuse import footprint
from monotile.ir.expr import loads
from monotile.ir.program import Compute, Scatter
from monotile.kernels.attention.cuts import cut_attention
from monotile.kernels.common import cost
from monotile.kernels.draft import Choice, Context, Draft
from monotile.kernels.matmul import cost as product_cost
from monotile.kernels.matmul.blocks import cut_key, followed, scratch_bytes, ways, within_run
from monotile.kernels.matmul.cost import Memory
from monotile.kernels.matmul.product import Product, product
from monotile.kernels.reduction.cuts import method_scratch, plain_method, windowed
from monotile.kernels.rowwise.cuts import held_rows
from monotile.kernels.transpose.match import behind_last
from monotile.plan.nodes import (
    Contract,
    Dim,
    Interleave,
    Map,
    Method,
    Reduce,
    Serial,
    Step,
    Turn,
)
from monotile.schedule.groups import Group
from monotile.schedule.rows import cut_rows, last_dims
from monotile.targets.target import Target

ALIGN = 128  # bytes between things in on-chip memory
MOST_INTERLEAVED = 8  # values of a last axis up to which a thread takes them all
EVEN = 8  # rows or columns of which a task has whole groups: vectors of results, and what a warp copies
MOST_BEHIND = 25  # values behind each of a vector, up to which a thread holds them all


def cut(group: Group, context: Context) -> Draft | None:
    """The best way to cut `group` into tasks, or None if none fits the on-chip memory."""
    if group not in context.drafts:
        context.drafts[group] = _cut(group, context)
    return context.drafts[group]


def _cut(group: Group, context: Context) -> Draft | None:
    if group.streamed:
        ways = (
            Draft(group, grid, (step,), {}, step.scratch_bytes, seconds)
            for seconds, step, grid in cut_attention(group, context.target)
        )
    else:
        ways = (
            _cut_single(group, context)
            if len(group.steps) == 1
            else itertools.chain(cut_rows(group, context), held_rows(group, context.target))
        )
    return min(ways, key=lambda d: d.seconds, default=None)


# One step: its dims may be flattened freely.


def _cut_single(group: Group, context: Context) -> Iterator[Draft]:
    step = group.steps[0]
    anchor, target = step[0], context.target
    names = tuple(s.out.name for s in step)
    if isinstance(anchor, Compute) and (p := product(anchor, context.tables, target)):
        best = _best_choice(anchor, p, step, context)
        if best is not None:
            seconds, method, scratch, tiles = best
            dims = _product_dims(anchor, p, tiles, target)
            by_axis = sorted(dims, key=lambda d: d.stage or 0)
            grid = tuple(-(-d.extent // d.tile) for d in by_axis)
            done = Step(names, dims, last_dims(method, dims), scratch=0, scratch_bytes=scratch)
            yield Draft(group, grid, (done,), {}, scratch, seconds)
            return
    turned = _turned(group, context) or _interleaved(group, context)
    if turned is not None:
        yield turned
        return
    total = math.prod(a.extent for a in anchor.axes)
    method = plain_method(anchor, total, target.workers, target)
    if isinstance(method, Serial) or not anchor.axes:
        dims = _serial_dims(anchor, method, target)
        grid = tuple(-(-d.extent // d.tile) for d in dims if d.stage is not None)
        yield _simple_draft(group, grid, dims, method, names, context)
        return
    if isinstance(anchor, Compute) and len(anchor.axes) > 1:
        along, after = anchor.axes[-2].extent, cost.following(step, target)
        method = windowed(method, anchor, total, target.workers, along, after, target)
    if isinstance(method, Reduce) and method.windows > 1:
        for dims in _window_dims(anchor, method, target):
            grid = tuple(-(-d.extent // d.tile) for d in dims)
            yield _simple_draft(group, grid, dims, method, names, context)
        return
    for tile in _flat_tiles(total, method, target):
        dims = (Dim(tuple(range(len(anchor.axes))), total, tile, 0),)
        yield _simple_draft(group, (-(-total // tile),), dims, method, names, context)


def _window_dims(s: Compute | Scatter, method: Reduce, target: Target) -> Iterator[tuple[Dim, Dim]]:
    """One task a worker: the last axis whole or in parts of whole sectors, and so many of all others."""
    *before, last = s.axes
    rows = math.prod(a.extent for a in before)
    least = max(method.outputs, cost.SECTOR // s.out.dtype.itemsize)
    parts = 1
    while parts == 1 or (last.extent % (parts * least) == 0 and parts <= target.workers):
        tile = -(-rows * parts // target.workers)
        yield (
            Dim(tuple(range(len(before))), rows, min(rows, round_up(tile, method.windows)), 0),
            Dim((len(before),), last.extent, last.extent // parts, 1),
        )
        parts *= 2


def _turned(group: Group, context: Context) -> Draft | None:
    """A copy in another order, if what a thread reads at once are whole vectors that it has registers for. A task is one vector a
    thread: copies that wait for nothing run side by side on other workers."""
    step = group.steps[0]
    anchor, target = step[0], context.target
    behind = behind_last(anchor) if isinstance(anchor, Compute) else ()
    between = math.prod(anchor.axes[p].extent for p in behind)
    vector = target.vector_bytes // anchor.out.dtype.itemsize
    whole = anchor.axes and anchor.axes[-1].extent % vector == 0
    if not target.has.coalescing or not 1 < between <= MOST_BEHIND or not whole:
        return None
    rest = tuple(p for p in range(len(anchor.axes)) if p not in behind)
    extent = math.prod(anchor.axes[p].extent for p in rest)
    dims = (
        Dim(rest, extent, min(extent, vector * target.threads), 0),
        Dim(behind, between, between, None),
    )
    grid = (-(-extent // dims[0].tile),)
    done = Step(tuple(s.out.name for s in step), dims, Turn(vector, 1))
    moved = 2 * dims[0].tile * between * anchor.out.dtype.itemsize / target.worker_bandwidth
    waves = -(-grid[0] // target.workers)
    return Draft(group, grid, (done,), {}, 0, waves * (target.latency_seconds + moved))


def _interleaved(group: Group, context: Context) -> Draft | None:
    """A short last axis, if vectors of the axis before it are what lies side by side in all that is read: an image with its channels
    last of one with these first. A task a worker."""
    step = group.steps[0]
    anchor, target = step[0], context.target
    if not target.has.coalescing or not isinstance(anchor, Compute):
        return None
    if anchor.reduce or len(step) > 1:
        return None
    if len(anchor.axes) < 2 or not 1 < anchor.axes[-1].extent <= MOST_INTERLEAVED:
        return None
    *before, along, last = anchor.axes
    vector = target.vector_bytes // anchor.out.dtype.itemsize
    read = [x for x in loads(anchor.body) if offset(x).mentions(along)]
    runs = [contiguous_run(offset(x), along, vector) for x in read]
    near = all(contiguous_run(offset(x), last, 2) > 1 for x in read if offset(x).mentions(last))
    if near or along.extent % vector or any(run < vector for run in runs):
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


def _serial_dims(s: Compute | Scatter, method: Method, target: Target) -> tuple[Dim, ...]:
    """One dim an axis; those that threads share are cut, the first ones first, for as many workers as there are."""
    shared = method.parallel if isinstance(method, Serial) else ()
    least = max(target.warp, target.vector_bytes // s.out.dtype.itemsize)  # neighbours in memory
    wanted = target.workers
    dims: list[Dim] = []
    cut_axes = 0
    for p, axis in enumerate(s.axes):
        tile = max(1, -(-axis.extent // wanted), least if p == len(s.axes) - 1 else 1)
        if p not in shared or tile >= axis.extent:
            dims.append(Dim((p,), axis.extent, axis.extent, None))
            continue
        dims.append(Dim((p,), axis.extent, tile, cut_axes))
        cut_axes += 1
        wanted = -(-wanted // -(-axis.extent // tile))
    return tuple(dims)


def _simple_draft(
    group: Group,
    grid: tuple[int, ...],
    dims: tuple[Dim, ...],
    method: Method,
    names: tuple[str, ...],
    context: Context,
) -> Draft:
    anchor, target = group.steps[0][0], context.target
    tasks = max(1, math.prod(grid))
    extents = _flat_extents(anchor, dims)
    seconds = cost.simple_seconds(
        anchor, extents, method, frozenset(), cost.following(group.steps[0], target), target
    )
    scratch = method_scratch(method, target)
    step = Step(names, dims, method, scratch=0, scratch_bytes=scratch)
    return Draft(group, grid, (step,), {}, scratch, -(-tasks // target.workers) * seconds)


def _flat_extents(s: Compute | Scatter, dims: tuple[Dim, ...]) -> cost.Extents:
    """How the neighbouring elements of a task's part of each dim spread over the axes, the last axis first."""
    extents: cost.Extents = {}
    for dim in dims:
        count = max(1, dim.tile)
        for axis in (s.axes[p] for p in reversed(dim.axes)):
            take = min(axis.extent, count)
            extents[axis.name] = max(1, take)
            count = -(-count // max(1, axis.extent))
    if isinstance(s, Compute):
        extents |= {r.name: r.extent for r in s.reduce}
    return extents


def _flat_tiles(total: int, method: Method, target: Target) -> Iterator[int]:
    """Whole waves: as many tasks as workers, or one thread's share if that is more."""
    at_once = target.threads
    if isinstance(method, Reduce):
        at_once = max(1, target.threads // method.lanes) * method.outputs
    elif isinstance(method, Map):
        at_once *= method.vector
    share = -(-total // target.workers)
    yield max(1, min(total, -(-share // at_once) * at_once))
    vector = method.vector if isinstance(method, Map) else 1
    vector = method.outputs if isinstance(method, Reduce) else vector
    if (smaller := max(1, -(-share // vector) * vector)) < at_once:
        yield smaller


def _best_choice(
    anchor: Compute, p: Product, step: tuple[Compute | Scatter, ...], context: Context
) -> Choice | None:
    """The fastest way to cut the product; None if there is none."""
    m, n = (math.prod(anchor.axes[a].extent for a in side) for side in (p.m, p.n))
    k = math.prod(anchor.reduce[a].extent for a in p.k)
    batches = math.prod(anchor.axes[a].extent for a in p.batch)
    if 0 in (m, n, k, batches):
        return None
    runs = m // (p.grain_m or m) * (n // (p.grain_n or n))
    m, n, batches = p.grain_m or m, p.grain_n or n, batches * runs
    common = context.target.model.common
    after = product_cost.finishing(step, common.after_plain, common.after_costly)
    stored = next(s.out.dtype.itemsize for s in reversed(step) if isinstance(s, Compute))
    memory = _from_memory(anchor, p, context.target)
    key = (*cut_key(p, m, n, k), p.grain_m, p.grain_n, batches, after, stored, memory)
    if key not in context.choices:
        choices = _choices(p, m, n, k, batches, after, stored, memory, context)
        context.choices[key] = min(choices, key=lambda way: way[0], default=None)
    return context.choices[key]


def _from_memory(c: Compute, p: Product, target: Target) -> Memory:
    """Operands that are larger than what the last-level cache keeps."""
    sides = _operand_bytes(c, p, whole=True)
    kept = target.l2_bytes * target.model.common.kept
    return Memory(*(nbytes if nbytes > kept else 0 for nbytes in sides))


def _choices(
    p: Product,
    m: int,
    n: int,
    k: int,
    batches: int,
    after: float,
    stored: int,
    memory: Memory,
    context: Context,
) -> Iterator[Choice]:
    """Every way to cut the product. after, stored: operations that follow an element, and bytes kept of it."""
    target, itemsize = context.target, p.dtype.itemsize
    for block, nbytes in ways(p, m, n, k, target, context.ways):
        if nbytes > target.shared_bytes:
            continue
        for tile_m, tile_n in regions(p, m, n, batches, block, target):
            method, scratch = block, nbytes
            tasks = batches // method.runs * -(-m // tile_m) * -(-n * method.runs // tile_n)
            if method.teams > 1 and tasks <= target.workers:
                continue
            waves = -(-tasks // target.workers)
            if waves > 1:
                method = followed(method, k, target)
                scratch = scratch_bytes(method, target)
            seconds = product_cost.rounds_seconds(
                method, tile_m, tile_n, k, itemsize, target, p.near, after, waves, memory
            )
            out = product_cost.store_seconds(batches * m * n, stored, itemsize, target)
            yield seconds + out, method, scratch, (tile_m, tile_n)


def regions(
    p: Product, m: int, n: int, batches: int, method: Contract, target: Target
) -> Iterator[tuple[int, int]]:
    """Rows and columns of a task: a block, or less of it where tasks share these evenly, or more tasks in as many waves."""
    if target.has.register_tiles:
        tile_m, tile_n = _cpu_region(m, n, batches, method, target)
        yield within_run(tile_m, p.grain_m, target), within_run(tile_n, p.grain_n, target)
        return
    tile_m = within_run(method.block_m, p.grain_m, target)
    tile_n = method.block_n if method.runs > 1 else within_run(method.block_n, p.grain_n, target)
    yield tile_m, tile_n
    if p.grain_m or p.grain_n or method.runs > 1:
        return
    rows, columns = -(-m // tile_m), -(-n // tile_n)
    waves = -(-batches * rows * columns // target.workers)
    room = max(rows * columns, waves * target.workers // batches)  # for tasks of a batch
    for down, across in ((rows, columns), (room // columns, columns), (rows, room // rows)):
        yield (
            min(tile_m, round_up(-(-m // down), EVEN)),
            min(tile_n, round_up(-(-n // across), EVEN)),
        )


def _cpu_region(m: int, n: int, batches: int, c: Contract, target: Target) -> tuple[int, int]:
    """Columns for a few tasks a thread, so that a thread's part of the right side stays in its cache; all rows,
    unless there are too few columns for that."""
    least = -(-4 * target.workers // batches)
    even = (t for t in range(least, least + target.workers) if t * batches % target.workers == 0)
    tasks = next(even, least)
    columns = max(c.block_n, round_up(-(-n // tasks), c.block_n))
    rows = round_up(-(-m // -(-tasks // -(-n // columns))), c.block_m)
    return min(max(rows, 64), round_up(m, c.block_m)), columns


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _product_dims(
    c: Compute, p: Product, tiles: tuple[int, int], target: Target
) -> tuple[Dim, ...]:
    """Batches, rows, columns. Tasks that follow each other have the same rows; or, where the columns' operand would be read from memory
    for each of these anew, the same columns."""
    batch = tuple(Dim((a,), c.axes[a].extent, 1, i) for i, a in enumerate(p.batch))
    extents = [math.prod(c.axes[a].extent for a in axes) for axes in (p.m, p.n)]
    tasks = math.prod(-(-e // t) for e, t in zip(extents, tiles, strict=True))
    order = [0, 1]
    if not target.has.register_tiles and tasks > target.workers:
        rows, columns = _operand_bytes(c, p)
        if columns > max(rows, target.l2_bytes * target.model.common.kept):
            order = [1, 0]
    sides = (
        Dim(axes, extent, tile, len(batch) + at)
        for axes, extent, tile, at in zip((p.m, p.n), extents, tiles, order, strict=True)
    )
    return (*batch, *sides)


def _operand_bytes(c: Compute, p: Product, *, whole: bool = False) -> tuple[int, int]:
    """What is read of both operands, of one batch or as a whole."""
    found = contraction(c)
    assert found is not None
    extents = {a.name: a.extent for a in (*c.axes, *c.reduce)}
    if not whole:
        extents |= {c.axes[a].name: 1 for a in p.batch}
    left, right = (
        sum(footprint(x, extents) for x in set(loads(factor))) for factor in found.facing(p.m)
    )
    return left, right
