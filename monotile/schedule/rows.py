"""Several steps in a task: it holds a tile of their rows, everything else whole."""

import math
from collections.abc import Iterator

import msgspec

from monotile.analysis.dependence import loads_of
from monotile.ir.expr import Axis
from monotile.ir.program import Compute, Scatter
from monotile.kernels.common import cost
from monotile.kernels.draft import Context, Draft, Local
from monotile.kernels.matmul.blocks import ranked
from monotile.kernels.matmul.product import Product, product, with_sides
from monotile.kernels.reduction.cuts import method_scratch, plain_method, windowed
from monotile.plan.nodes import (
    BoxDim,
    Contract,
    Dim,
    Map,
    Reduce,
    Step,
)
from monotile.schedule.groups import Group

MOST_ROWS = 128  # of an axis in a task, but for all of it
ALIGN = 128  # bytes between things in on-chip memory
Bound = dict[str, tuple[int, int]]  # of a row, by tensor: position of the axis, lead


def cut_rows(group: Group, context: Context) -> Iterator[Draft]:
    """Ever faster ones: a way to cut the group is given up as soon as it is as slow as the best so far."""
    least = math.inf
    for tiles in _row_tiles(group, context):
        draft = _rows_draft(group, tiles, context, least)
        if draft is not None:
            least = draft.seconds
            yield draft


def row_extents(group: Group) -> tuple[int, ...]:
    by_name = {s.out.name: s for s in group.statements()}
    return tuple(by_name[name].axes[p].extent - lead for (name, p, lead), *_ in group.rows)


def _row_tiles(group: Group, context: Context) -> Iterator[tuple[int, ...]]:
    """Powers of two; without products, whose blocks these suit, also tiles of which there is one for each worker: all
    outer rows apart, or all in one task."""
    extents, workers = row_extents(group), context.target.workers
    anchors = [step[0] for step in group.steps]
    free = not any(
        isinstance(s, Compute) and product(s, context.tables, context.target) for s in anchors
    )
    seen: set[tuple[int, ...]] = {extents}
    yield extents
    for position, extent in enumerate(extents):
        inner, ones = extents[position + 1 :], tuple(1 for _ in extents[position + 1 :])
        apart, whole = tuple(1 for _ in range(position)), extents[:position]
        each = max(1, workers // max(1, math.prod(whole)))
        options: list[tuple[int, ...]] = []
        if free:
            options.append((*whole, -(-extent // workers), *inner))
            options.append((*apart, -(-extent // each), *inner))
        for tile in _sizes(extent):
            options += [(*apart, tile, *inner), (*apart, tile, *ones)]
        for option in options:
            if option not in seen and all(option):
                seen.add(option)
                yield option


def _sizes(extent: int) -> Iterator[int]:
    """Powers of two; then the whole in 2, 4 and 8 parts: windows of an image are shared only within tiles that they divide."""
    size = 1
    while size < 2 * extent and size <= MOST_ROWS:
        yield min(size, extent)
        size *= 2
    yield from (extent // n for n in (2, 4, 8) if extent % n == 0 and extent // n <= MOST_ROWS)


def _rows_draft(
    group: Group, tiles: tuple[int, ...], context: Context, least: float
) -> Draft | None:
    """None where it does not fit, or takes `least` seconds or more."""
    target = context.target
    bound = [{name: (p, lead) for name, p, lead in row} for row in group.rows]
    extents = row_extents(group)
    grid = tuple(-(-e // t) for e, t in zip(extents, tiles, strict=True))
    waves = -(-math.prod(grid) // target.workers)
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
        seconds += spent + (
            target.model.common.block_barrier * target.barrier_seconds if wait else 0.0
        )
        if waves * seconds >= least:
            return None
        steps.append(msgspec.structs.replace(made, barrier=wait, scratch=shared))
    if shared + most > target.shared_bytes:
        return None
    return Draft(group, grid, tuple(steps), local, shared + most, waves * seconds)


def _box_dim(
    axis: Axis, position: int, name: str, bound: list[Bound], tiles: tuple[int, ...]
) -> BoxDim:
    for number, row in enumerate(bound):
        p, lead = row[name]
        if p == position:
            return BoxDim(number, tiles[number], min(tiles[number] + lead, axis.extent))
    return BoxDim(None, axis.extent, axis.extent)


def _rows_step(
    step: tuple[Compute | Scatter, ...],
    bound: list[Bound],
    tiles: tuple[int, ...],
    own: frozenset[str],
    context: Context,
    room: int,
) -> tuple[Step, float] | None:
    """A step of a group with several, and its time for one task."""
    anchor, target = step[0], context.target
    names = tuple(s.out.name for s in step)
    where = {row[anchor.out.name][0]: i for i, row in enumerate(bound)}
    lead = {p: bound[i][anchor.out.name][1] for p, i in where.items()}
    extents = {
        a.name: min(tiles[where[p]] + lead[p], a.extent) if p in where else a.extent
        for p, a in enumerate(anchor.axes)
    }
    if isinstance(anchor, Compute):
        extents |= {r.name: r.extent for r in anchor.reduce}
        p = product(anchor, context.tables, target, own)
        if p and not p.grain_m and not p.grain_n:  # else rows might be cut inside a run
            found = _rows_contract(anchor, p, names, where, tiles, extents, own, context, room)
            if found:
                return found
    total, after = cost.product(extents, anchor.axes), cost.following(step, target)
    method = plain_method(anchor, total, 1, target)
    if isinstance(method, Map) and anchor.axes:
        innermost = extents[anchor.axes[-1].name] - lead.get(len(anchor.axes) - 1, 0)
        method = Map(min(method.vector, innermost & -innermost))
    elif isinstance(method, Reduce) and method.outputs > 1:
        innermost = extents[anchor.axes[-1].name] - lead.get(len(anchor.axes) - 1, 0)
        outputs = min(method.outputs, innermost & -innermost)
        method = msgspec.structs.replace(method, outputs=outputs)
        if isinstance(anchor, Compute) and len(anchor.axes) > 1:
            before = anchor.axes[-2]
            along = math.gcd(before.extent, extents[before.name], lead.get(len(anchor.axes) - 2, 0))
            method = windowed(method, anchor, total, 1, along, after, target)
    dims = tuple(
        Dim((p,), a.extent, tiles[where[p]], where[p], lead[p])
        if p in where
        else Dim((p,), a.extent, a.extent, None)
        for p, a in enumerate(anchor.axes)
    )
    seconds = cost.simple_seconds(anchor, extents, method, own, after, target)
    near = 0.0 if _reads_far(anchor, own) else target.model.common.near
    seconds -= target.latency_seconds * near
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
    own: frozenset[str],
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
    p = with_sides(p, anchor, (m, n), target, own)
    size_m, size_n = (math.prod(extents[anchor.axes[q].name] for q in side) for side in (m, n))
    k = math.prod(anchor.reduce[q].extent for q in p.k)
    walked = math.prod(extents[anchor.axes[q].name] for q in batch)
    fitting = (
        way
        for way in ranked(p, size_m, size_n, k, target, context.ways)
        if way[2] <= room and way[1].instruction != "wgmma"  # its panels want the first bytes
    )
    best = next(fitting, None)
    if best is None:
        return None
    dims = [
        Dim((q,), anchor.axes[q].extent, 1 if q in where else anchor.axes[q].extent, where.get(q))
        for q in batch
    ]
    for side, size in ((m, size_m), (n, size_n)):
        extent = math.prod(anchor.axes[q].extent for q in side)
        dims.append(Dim(side, extent, size, where.get(side[0])))
    made = Step(names, tuple(dims), last_dims(best[1], tuple(dims)), scratch_bytes=best[2])
    return made, walked * best[0]


def last_dims(c: Contract, dims: tuple[Dim, ...]) -> Contract:
    """`c` of a step whose last two dims are its sides."""
    return msgspec.structs.replace(c, m=len(dims) - 2, n=len(dims) - 1)
