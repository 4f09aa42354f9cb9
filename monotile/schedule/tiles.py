"""Tile shapes: constructed, aligned to the hardware, ranked by the cost model (Roller)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from monotile.analysis.dependence import loads_of
from monotile.ir.expr import Axis
from monotile.ir.program import Compute, Scatter
from monotile.schedule import cost
from monotile.schedule.attend import cut_attention
from monotile.schedule.groups import Group
from monotile.schedule.methods import Product, Ways, product, ways, within_run
from monotile.schedule.plain import access_width, method_scratch, plain_method
from monotile.schedule.plan import (
    BoxDim,
    Contract,
    Dim,
    Map,
    Method,
    Reduce,
    Serial,
    Step,
)
from monotile.target.target import Target

ALIGN = 128  # bytes between things in on-chip memory


@dataclass(frozen=True, slots=True)
class Local:
    """A tensor of which a task holds `box` on chip, at byte `offset`."""

    offset: int
    box: tuple[BoxDim, ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """A group cut into tasks. shared_bytes: on-chip memory. seconds: the model's guess for the stage."""

    group: Group
    grid: tuple[int, ...]
    steps: tuple[Step, ...]
    local: dict[str, Local]
    shared_bytes: int
    seconds: float

    @property
    def tasks(self) -> int:
        return math.prod(self.grid)


@dataclass(frozen=True, slots=True)
class Context:
    """What cutting needs to know besides the group. tables: leading table dimensions of the weights that have some.

    drafts, ways: what was found for groups and for products so far.
    """

    tables: dict[str, int]
    target: Target
    drafts: "dict[Group, Draft | None]" = field(default_factory=dict, repr=False)
    ways: Ways = field(default_factory=dict, repr=False)


def cut(group: Group, context: Context) -> Draft | None:
    """The best way to cut `group` into tasks, or None if none fits the on-chip memory."""
    if group.streamed:
        ways = (
            Draft(group, grid, (step,), {}, step.scratch_bytes, seconds)
            for seconds, step, grid in cut_attention(group, context.target)
        )
    else:
        ways = _cut_single(group, context) if len(group.steps) == 1 else _cut_rows(group, context)
    return min(ways, key=lambda d: d.seconds, default=None)


# One step: its dims may be flattened freely.


def _cut_single(group: Group, context: Context) -> Iterator[Draft]:
    step = group.steps[0]
    anchor, target = step[0], context.target
    names = tuple(s.out.name for s in step)
    if isinstance(anchor, Compute) and (p := product(anchor, context.tables, target)):
        choices = _contract_choices(anchor, p, step, context)
        best = min(choices, key=lambda way: way[0], default=None)
        if best is not None:
            seconds, method, scratch, tiles = best
            dims = _product_dims(anchor, p, tiles)
            grid = tuple(-(-d.extent // d.tile) for d in dims)
            done = Step(names, dims, _at(method, dims), scratch=0, scratch_bytes=scratch)
            yield Draft(group, grid, (done,), {}, scratch, seconds)
            return
    total = math.prod(a.extent for a in anchor.axes)
    method = plain_method(anchor, total, target.workers, target)
    if isinstance(method, Serial) or not anchor.axes:
        dims = _serial_dims(anchor, method, target)
        grid = tuple(-(-d.extent // d.tile) for d in dims if d.stage is not None)
        yield _simple_draft(group, grid, dims, method, names, context)
        return
    for tile in _flat_tiles(total, method, target):
        dims = (Dim(tuple(range(len(anchor.axes))), total, tile, 0),)
        yield _simple_draft(group, (-(-total // tile),), dims, method, names, context)


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
    extents = _flat_extents(anchor, max(1, math.prod(d.tile for d in dims)))
    seconds = cost.simple_seconds(anchor, extents, access_width(method), frozenset(), target)
    scratch = method_scratch(method, target)
    step = Step(names, dims, method, scratch=0, scratch_bytes=scratch)
    return Draft(group, grid, (step,), {}, scratch, -(-tasks // target.workers) * seconds)


def _flat_extents(s: Compute | Scatter, count: int) -> cost.Extents:
    """How `count` neighbouring elements spread over the axes, the last axis first."""
    extents: cost.Extents = {}
    for axis in reversed(s.axes):
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
        at_once = max(1, target.threads // method.lanes)
    elif isinstance(method, Map):
        at_once *= method.vector
    share = -(-total // target.workers)
    yield max(1, min(total, -(-share // at_once) * at_once))
    vector = method.vector if isinstance(method, Map) else 1
    if (smaller := max(1, -(-share // vector) * vector)) < at_once:
        yield smaller


def _contract_choices(
    anchor: Compute, p: Product, step: tuple[Compute | Scatter, ...], context: Context
) -> Iterator[tuple[float, Contract, int, tuple[int, int]]]:
    """(seconds of the stage, method, its on-chip bytes, tile) of every way to cut the product."""
    target = context.target
    m, n = (math.prod(anchor.axes[a].extent for a in side) for side in (p.m, p.n))
    k = math.prod(anchor.reduce[a].extent for a in p.k)
    batches = math.prod(anchor.axes[a].extent for a in p.batch)
    if 0 in (m, n, k, batches):
        return
    runs = m // (p.grain_m or m) * (n // (p.grain_n or n))
    m, n, batches = p.grain_m or m, p.grain_n or n, batches * runs
    after, itemsize = sum(cost.operations(s) for s in step[1:]), p.dtype.itemsize
    for method, scratch in ways(p, m, n, k, target, context.ways):
        if scratch > target.shared_bytes:
            continue
        tile_m, tile_n = (method.block_m, method.block_n)
        if target.kind == "cpu":
            tile_m, tile_n = _cpu_region(m, n, batches, method, target)
        tile_m = within_run(tile_m, p.grain_m, target)
        tile_n = within_run(tile_n, p.grain_n, target)
        seconds = cost.contract_seconds(method, tile_m, tile_n, k, itemsize, target)
        seconds += tile_m * tile_n * after / (target.flops["fma"] / 2 / target.workers)
        waves = -(-batches * -(-m // tile_m) * -(-n // tile_n) // target.workers)
        yield waves * seconds, method, scratch, (tile_m, tile_n)


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


def _product_dims(c: Compute, p: Product, tiles: tuple[int, int]) -> tuple[Dim, ...]:
    batch = tuple(Dim((a,), c.axes[a].extent, 1, i) for i, a in enumerate(p.batch))
    sides: list[Dim] = []
    for i, (axes, tile) in enumerate(zip((p.m, p.n), tiles, strict=True)):
        extent = math.prod(c.axes[a].extent for a in axes)
        sides.append(Dim(axes, extent, tile, len(batch) + i))
    return (*batch, *sides)


def _at(c: Contract, dims: tuple[Dim, ...]) -> Contract:
    return msgspec.structs.replace(c, m=len(dims) - 2, n=len(dims) - 1)


# Several steps: tasks hold a tile of rows, everything else whole.


def _cut_rows(group: Group, context: Context) -> Iterator[Draft]:
    for tiles in _row_tiles(group):
        draft = _rows_draft(group, tiles, context)
        if draft is not None:
            yield draft


def row_extents(group: Group) -> tuple[int, ...]:
    by_name = {s.out.name: s for s in group.statements()}
    return tuple(by_name[row[0][0]].axes[row[0][1]].extent for row in group.rows)


def _row_tiles(group: Group) -> Iterator[tuple[int, ...]]:
    extents = row_extents(group)
    seen: set[tuple[int, ...]] = {extents}
    yield extents
    for position in range(len(extents)):
        size = 1
        while size < 2 * extents[position] and size <= 128:
            inner = extents[position + 1 :]
            tiles = (*(1 for _ in range(position)), min(size, extents[position]), *inner)
            ones = (*tiles[: position + 1], *(1 for _ in inner))
            for option in (tiles, ones):
                if option not in seen:
                    seen.add(option)
                    yield option
            size *= 2


def _rows_draft(group: Group, tiles: tuple[int, ...], context: Context) -> Draft | None:
    target = context.target
    bound = [dict(row) for row in group.rows]
    extents = row_extents(group)
    grid = tuple(-(-e // t) for e, t in zip(extents, tiles, strict=True))
    local: dict[str, Local] = {}
    shared = 0
    for number, step in enumerate(group.steps):
        for s in step:
            name = s.out.name
            again = any(
                name in {x.tensor.name for x in loads_of(t)}
                for later in group.steps[number + 1 :]
                for t in later
            )
            if not again:
                continue
            box = tuple(_box_dim(axis, p, name, bound, tiles) for p, axis in enumerate(s.axes))
            local[name] = Local(shared, box)
            bytes_ = math.prod(b.extent for b in box) * s.out.dtype.itemsize
            shared += -(-bytes_ // ALIGN) * ALIGN
    own = frozenset(local)
    steps: list[Step] = []
    seconds = 0.0
    most = 0
    fresh: set[str] = set()  # written since the last barrier of the block
    scratch_used = False
    for step in group.steps:
        found = _rows_step(step, bound, tiles, own, context, target.shared_bytes - shared)
        if found is None:
            return None
        made, spent = found
        most = max(most, made.scratch_bytes)
        reads = {x.tensor.name for s in step for x in loads_of(s)}
        wait = bool(reads & fresh) or (scratch_used and made.scratch_bytes > 0)
        if wait:
            fresh, scratch_used = set(), False
        fresh |= set(made.computes)
        scratch_used |= made.scratch_bytes > 0
        seconds += spent + (cost.BLOCK_BARRIER * target.barrier_seconds if wait else 0.0)
        steps.append(msgspec.structs.replace(made, barrier=wait, scratch=shared))
    if shared + most > target.shared_bytes:
        return None
    waves = -(-math.prod(grid) // target.workers)
    return Draft(group, grid, tuple(steps), local, shared + most, waves * seconds)


def _box_dim(
    axis: Axis, position: int, name: str, bound: list[dict[str, int]], tiles: tuple[int, ...]
) -> BoxDim:
    for number, row in enumerate(bound):
        if row.get(name) == position:
            return BoxDim(number, tiles[number], min(tiles[number], axis.extent))
    return BoxDim(None, axis.extent, axis.extent)


def _rows_step(
    step: tuple[Compute | Scatter, ...],
    bound: list[dict[str, int]],
    tiles: tuple[int, ...],
    own: frozenset[str],
    context: Context,
    room: int,
) -> tuple[Step, float] | None:
    """A step of a group with several, and its time for one task."""
    anchor, target = step[0], context.target
    names = tuple(s.out.name for s in step)
    where = {row[anchor.out.name]: i for i, row in enumerate(bound)}
    extents = {
        a.name: min(tiles[where[p]], a.extent) if p in where else a.extent
        for p, a in enumerate(anchor.axes)
    }
    if isinstance(anchor, Compute):
        extents |= {r.name: r.extent for r in anchor.reduce}
        p = product(anchor, context.tables, target, own)
        if p and not p.grain_m and not p.grain_n:  # else rows might be cut inside a run
            found = _rows_contract(anchor, p, names, where, tiles, extents, context, room)
            if found:
                return found
    total = cost.product(extents, anchor.axes)
    method = plain_method(anchor, total, 1, target)
    if isinstance(method, Map) and anchor.axes:
        innermost = extents[anchor.axes[-1].name]
        method = Map(min(method.vector, innermost & -innermost))
    dims = tuple(
        Dim((p,), a.extent, tiles[where[p]] if p in where else a.extent, where.get(p))
        for p, a in enumerate(anchor.axes)
    )
    seconds = cost.simple_seconds(anchor, extents, access_width(method), own, target)
    seconds -= target.latency_seconds * (0.0 if _reads_far(anchor, own) else 0.8)
    made = Step(names, dims, method, scratch_bytes=method_scratch(method, target))
    return made, seconds


def _reads_far(s: Compute | Scatter, own: frozenset[str]) -> bool:
    return any(x.tensor.name not in own for x in loads_of(s))


def _rows_contract(
    anchor: Compute,
    p: Product,
    names: tuple[str, ...],
    where: dict[int, int],
    tiles: tuple[int, ...],
    extents: cost.Extents,
    context: Context,
    room: int,
) -> tuple[Step, float] | None:
    """A product inside a group: rows cut to one element are batches; a side is one cut axis, or whole ones."""
    target = context.target
    single = {q for q in (*p.m, *p.n) if q in where and tiles[where[q]] == 1}
    m = tuple(q for q in p.m if q not in single)
    n = tuple(q for q in p.n if q not in single)
    batch = tuple(q for q in range(len(anchor.axes)) if q not in m and q not in n)
    if any(q in where and tiles[where[q]] != 1 for q in batch):
        return None
    for side in (m, n):
        if not side or (len(side) > 1 and any(q in where for q in side)):
            return None
    size_m, size_n = (math.prod(extents[anchor.axes[q].name] for q in side) for side in (m, n))
    k = math.prod(anchor.reduce[q].extent for q in p.k)
    walked = math.prod(extents[anchor.axes[q].name] for q in batch)
    best: tuple[float, Contract, int] | None = None
    for method, scratch in ways(p, size_m, size_n, k, target, context.ways):
        if scratch > room or method.instruction == "wgmma":  # its panels want the first bytes
            continue
        seconds = walked * cost.contract_seconds(
            method, size_m, size_n, k, p.dtype.itemsize, target
        )
        if best is None or seconds < best[0]:
            best = seconds, method, scratch
    if best is None:
        return None
    dims = [
        Dim((q,), anchor.axes[q].extent, 1 if q in where else anchor.axes[q].extent, where.get(q))
        for q in batch
    ]
    for side, size in ((m, size_m), (n, size_n)):
        extent = math.prod(anchor.axes[q].extent for q in side)
        dims.append(Dim(side, extent, size, where.get(side[0])))
    made = Step(names, tuple(dims), _at(best[1], tuple(dims)), scratch_bytes=best[2])
    return made, best[0]
