"""Cuts a group of several steps into tasks: each task has a tile of the common rows and all of every other axis."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from monotile.analysis.dependence import loads_of
from monotile.ir.expr import Axis, Load, axes_of
from monotile.ir.program import Compute, Scatter, used
from monotile.kernels.common.cost import ROUNDING
from monotile.kernels.draft import Context, Draft, Local
from monotile.kernels.family import RowSite
from monotile.kernels.group import Group
from monotile.kernels.registry import cut_in_rows, tiled
from monotile.plan.nodes import Step
from monotile.plan.places import BoxDim
from monotile.targets.target import Target

MOST_ROWS = 128  # of an axis in a task, unless it has all of it
FEW = 16  # rows that a task may have whatever its part of the columns
ALIGN = 128  # bytes between tensors in on-chip memory
BANKS = 32  # bytes; row strides that are a multiple of this cause bank conflicts for lanes that go down the rows
Bound = dict[str, tuple[int, int]]  # of a row, by tensor: position of the axis, lead


def cut_rows(group: Group, context: Context, within: float = math.inf) -> Iterator[Draft]:
    """Yields drafts, each faster than the last. A draft is abandoned once it is as slow as the best so far, unless all are wanted, or
    slower than `within` seconds."""
    least = within * ROUNDING
    rows = _rows(group, context.target)
    for tiles in _row_tiles(group, context):
        draft = _rows_draft(rows, tiles, context, least)
        if draft is not None:
            if not context.chooser.wants_all:
                least = draft.seconds
            yield draft


def row_extents(group: Group) -> tuple[int, ...]:
    by_name = {s.out.name: s for s in group.statements()}
    return tuple(by_name[name].axes[p].extent - lead for (name, p, lead), *_ in group.rows)


def _row_tiles(group: Group, context: Context) -> Iterator[tuple[int, ...]]:
    """Row tiles in powers of two, as suit the blocks of products. Without products also tiles of which there is one for each worker:
    outer rows one at a time, or all in one task. Few outer rows are all in one task with products too: each worker has all of them
    and some columns."""
    extents, workers = row_extents(group), context.target.workers
    anchors = [step[0] for step in group.steps]
    free = not any(tiled(s, context) for s in anchors)
    seen: set[tuple[int, ...]] = {extents}
    yield extents
    for position, extent in enumerate(extents):
        inner, ones = extents[position + 1 :], tuple(1 for _ in extents[position + 1 :])
        apart, whole = tuple(1 for _ in range(position)), extents[:position]
        each = max(1, workers // max(1, math.prod(whole)))
        options: list[tuple[int, ...]] = []
        if free or math.prod(whole) <= FEW:
            options.append((*whole, -(-extent // workers), *inner))
        if free:
            options.append((*apart, -(-extent // each), *inner))
        if context.streamed:  # all vectors that a matrix multiplies, some of its rows
            options += _behind(extents, position, workers)
        for tile in _sizes(extent):
            options += [(*apart, tile, *inner), (*apart, tile, *ones)]
        for option in options:
            if option not in seen and all(option):
                seen.add(option)
                yield option


def _behind(extents: tuple[int, ...], position: int, workers: int) -> Iterator[tuple[int, ...]]:
    """Tiles of which there is one for each worker: the first axes whole, those between them and `position` one row at a time."""
    for first in range(1, position):
        apart = extents[first:position]
        each = max(1, workers // math.prod(apart))
        own = -(-extents[position] // each)
        yield (*extents[:first], *(1 for _ in apart), own, *extents[position + 1 :])


def _sizes(extent: int) -> Iterator[int]:
    """Powers of two; then the whole in 2, 4 and 8 parts, since windows of an image are shared only within tiles that divide it."""
    size = 1
    while size < 2 * extent and size <= MOST_ROWS:
        yield min(size, extent)
        size *= 2
    yield from (extent // n for n in (2, 4, 8) if extent % n == 0 and extent // n <= MOST_ROWS)


class _Part(NamedTuple):
    """A step of a group, independent of the tiles. where, lead, own: as in a `RowSite`. reads: names of tensors."""

    step: tuple[Compute | Scatter, ...]
    where: dict[int, int]
    lead: dict[int, int]
    own: frozenset[str]
    reads: frozenset[str]


class _Rows(NamedTuple):
    """A group, with what is the same for all tiles. held: statements whose rows a task holds on chip, and whether a step reduces down
    these rows."""

    group: Group
    bound: list[Bound]
    extents: tuple[int, ...]
    held: list[tuple[Compute | Scatter, bool]]
    parts: list[_Part]


def _rows(group: Group, target: Target) -> _Rows:
    bound = [{name: (p, lead) for name, p, lead in row} for row in group.rows]
    held = [
        (s, _is_padded(s, group.readers[s.out.name], target))
        for s in group.statements()
        if s.out.name in group.readers
    ]
    own = frozenset(s.out.name for s, _ in held)
    parts: list[_Part] = []
    for step in group.steps:
        where = {row[step[0].out.name][0]: i for i, row in enumerate(bound)}
        lead = {p: bound[i][step[0].out.name][1] for p, i in where.items()}
        reads = frozenset(x.tensor.name for s in step for x in loads_of(s))
        near = {t.name for s in step for t in (s.out, *used(s))}
        parts.append(_Part(step, where, lead, own & near, reads))
    return _Rows(group, bound, row_extents(group), held, parts)


def _rows_draft(
    rows: _Rows, tiles: tuple[int, ...], context: Context, least: float
) -> Draft | None:
    """The draft for these tiles; None where it does not fit on chip, or takes `least` seconds or more."""
    target = context.target
    grid = tuple(-(-e // t) for e, t in zip(rows.extents, tiles, strict=True))
    waves = -(-math.prod(grid) // target.workers)
    local: dict[str, Local] = {}
    shared = 0
    for s, padded in rows.held:
        name = s.out.name
        box = tuple(_box_dim(axis, p, name, rows.bound, tiles) for p, axis in enumerate(s.axes))
        pitch = _pitch(s, box, target) if padded else box[-1].extent if box else 1
        local[name] = Local(shared, box, pitch)
        bytes_ = math.prod(b.extent for b in box[:-1]) * pitch * s.out.dtype.itemsize
        shared += -(-bytes_ // ALIGN) * ALIGN
    room = target.shared_bytes - shared
    if room < 0:
        return None
    steps: list[Step] = []
    seconds = 0.0
    most = 0
    fresh: set[str] = set()  # written since the last barrier of the block
    scratch_used = False
    for step, where, lead, own, reads in rows.parts:
        found = _in_rows(RowSite(step, where, tiles, lead, own, room), context)
        if found is None:
            return None
        made, spent = found
        most = max(most, made.scratch_bytes)
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
    return Draft(rows.group, grid, tuple(steps), local, shared + most, waves * seconds)


def _pitch(s: Compute | Scatter, box: tuple[BoxDim, ...], target: Target) -> int:
    """Row stride, in elements, of the rows of `s` on chip: padded by a vector where lanes that reduce down the rows would have bank
    conflicts."""
    row, size = (box[-1].extent if box else 1), s.out.dtype.itemsize
    return row if row * size % BANKS else row + target.vector_bytes // size


def _is_padded(s: Compute | Scatter, readers: Sequence[Compute | Scatter], target: Target) -> bool:
    """Whether lanes reduce down the rows of `s`, and its rows may be padded by a vector."""
    if not target.has.lockstep or target.vector_bytes % s.out.dtype.itemsize:
        return False
    return any(_is_down(x, t) for t in readers for x in loads_of(t) if x.tensor.name == s.out.name)


def _is_down(x: Load, reader: Compute | Scatter) -> bool:
    """Whether `reader` reduces `x` down its rows alone."""
    if not isinstance(reader, Compute) or not reader.reduce or len(x.index) < 2:
        return False
    *rows, last = (axes_of(i) & {*reader.reduce} for i in x.index)
    return not last and any(rows)


def _in_rows(site: RowSite, context: Context) -> tuple[Step, float] | None:
    """`cut_in_rows`, memoised for each site: groups that share a step try the same tiles of it."""
    places = (*site.where.items(),), (*site.lead.items(),)
    key = ("in rows", site.step, *places, site.tiles, site.own, site.room)
    return context.memo.once(key, lambda: cut_in_rows(site, context))


def _box_dim(
    axis: Axis, position: int, name: str, bound: list[Bound], tiles: tuple[int, ...]
) -> BoxDim:
    for number, row in enumerate(bound):
        p, lead = row[name]
        if p == position:
            return BoxDim(number, tiles[number], min(tiles[number] + lead, axis.extent))
    return BoxDim(None, axis.extent, axis.extent)
