"""Candidates for cutting Scatters whose writes may collide into tasks: along axes that separate writes, or by the positions written. Also
those of the construction of lists of terms."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from monotile.analysis.dependence import apart
from monotile.analysis.row_lists import RowLists, lists_of
from monotile.ir.program import Compute, Scatter
from monotile.kernels.common import flat
from monotile.kernels.common.cost import Access, Extents
from monotile.kernels.draft import Context, Draft
from monotile.kernels.family import Match, RowSite
from monotile.kernels.group import Group
from monotile.kernels.scatter.cost import listed_seconds, rows_seconds, serial_seconds
from monotile.kernels.scatter.method import Listed, ListRows, Serial
from monotile.kernels.scatter.roles import Roles, roles_of
from monotile.plan.nodes import Dim, Step
from monotile.targets.target import Target

MOST_ROWS = 2048  # positions of a task with lists
CAPACITY = 256  # terms that a warp collects before they are added
LOADS = 16  # indices that a thread reads at once
MOST_VALUES = 40  # registers for values that a thread loads at once
LEAST_LANES_BYTES = 32  # contiguous bytes that neighbouring lanes read, at least


def match(result: Compute, computes: Mapping[str, Compute], context: Context) -> Match | None:
    """Matches the lists of the terms of each row; all of them but the rank are read by other stages."""
    if not context.target.has.lockstep or (found := lists_of(result, computes)) is None:
        return None
    inner = found.statements[:-1]
    return Match(inner, found, kept=frozenset({found.first.out.name}), faster=True)


def cut(group: Group, context: Context) -> Iterator[Draft]:
    """Drafts of a Scatter as a stage: serial, and by lists where threads run in lockstep; none if the group is no Scatter, or all of its
    writes are separate."""
    anchor, target = group.steps[0][0], context.target
    if isinstance(group.match, RowLists):
        yield from _rows(group, group.match, target)
        return
    method = _serial(anchor) if isinstance(anchor, Scatter) and len(group.steps) == 1 else None
    if method is None or not isinstance(anchor, Scatter):
        return
    dims = _dims(anchor, method, target)
    found = flat.draft(group, dims, method, context, _access(target))
    waves = -(-found.tasks // target.workers)
    more = waves * _in_order(anchor, method, [d.tile for d in dims], target)
    yield replace(found, seconds=found.seconds + more)
    if target.has.lockstep and (roles := roles_of(anchor)) is not None:
        yield from _listed(group, anchor, roles, target)


def in_rows(site: RowSite, context: Context) -> tuple[Step, float] | None:
    """The Scatter as a step of a task with several steps, with its cost; None if it cannot be."""
    anchor, target = site.anchor, context.target
    method = _serial(anchor) if isinstance(anchor, Scatter) else None
    if method is None or not isinstance(anchor, Scatter):
        return None
    step, seconds = flat.in_rows(site, method, context, _access(target))
    tiles = [site.extents[a.name] for a in anchor.axes]
    return step, seconds + _in_order(anchor, method, tiles, target)


def _serial(s: Scatter) -> Serial | None:
    found = apart(s)
    return None if len(found) == len(s.axes) else Serial(tuple(sorted(found)))


def _access(target: Target) -> flat.Accesses:
    def access(_extents: Extents) -> Access:
        return Access(1, target.warp)

    return access


def _in_order(s: Scatter, m: Serial, tiles: Sequence[int], target: Target) -> float:
    """Seconds that threads wait between writes; 0 for a processor with caches and without warps."""
    if not target.has.lockstep:
        return 0.0
    shared = math.prod(tiles[p] for p in m.parallel)
    walked = math.prod(n for p, n in enumerate(tiles) if p not in m.parallel)
    return serial_seconds(s, walked, -(-shared // target.threads), target)


def _dims(s: Scatter, method: Serial, target: Target) -> tuple[Dim, ...]:
    """One dim per axis. The axes that threads share are cut, from the first on, into as many parts as there are workers."""
    shared = method.parallel
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


def _rows(group: Group, found: RowLists, target: Target) -> Iterator[Draft]:
    """Drafts with as many ranges of rows as workers, and with lists for twice the average number of terms where these fit."""
    rows = min(MOST_ROWS, -(-found.rows // target.workers))
    grid = (-(-found.rows // rows),)
    names = tuple(s.out.name for s in group.steps[0])
    dims = (Dim((0,), found.terms, found.terms, None),)
    each = -(-2 * found.terms * rows // (found.rows * (target.threads // target.warp)))
    for capacity in dict.fromkeys((CAPACITY, max(CAPACITY, 1 << (each - 1).bit_length()))):
        method = ListRows(0, rows, capacity, LOADS)
        nbytes = method.nbytes(target.threads, target.warp)
        most = max(found.rows, found.terms), capacity * target.threads // target.warp
        if nbytes > target.shared_bytes or most[0] >= 1 << 31 or most[1] >= 1 << 16:
            continue
        step = Step(names, dims, method, scratch_bytes=nbytes)
        seconds = -(-grid[0] // target.workers) * rows_seconds(found, method, target)
        yield Draft(group, grid, (step,), {}, nbytes, seconds)


def _listed(group: Group, s: Scatter, roles: Roles, target: Target) -> Iterator[Draft]:
    """Drafts with as many ranges of positions as workers, or also with the features in parts: one, some, or as many as possible."""
    positions, outer = roles.positions(s), math.prod(s.axes[p].extent for p in roles.outer)
    if max(positions, roles.count(s)) >= 1 << 31:
        return
    free = max(1, target.workers // outer)
    seen: set[tuple[int, ...]] = set()
    for parts in (1, max(1, free // positions), *(n for n in (2, 4, 16, 64) if n <= free), free):
        dims = _listed_dims(s, roles, parts)
        grid = [d.extent // d.tile for d in dims if d.stage is not None]
        ranges = min(positions, max(1, target.workers // math.prod(grid)))
        rows = min(MOST_ROWS, -(-positions // ranges))
        ways = (*grid, -(-positions // rows))
        if ways in seen:
            continue
        seen.add(ways)
        features = math.prod(dims[p].tile for p in roles.features)
        methods = _methods(s, roles, len(grid), rows, features, target)
        timed = [(listed_seconds(s, roles, m, features, target), k, m) for k, m in methods]
        seconds, _, method = min(timed, key=lambda x: x[:2])
        nbytes = method.nbytes(target.threads, target.warp)
        if nbytes > target.shared_bytes:
            continue
        step = Step((s.out.name,), dims, method, scratch_bytes=nbytes)
        waves = -(-math.prod(ways) // target.workers)
        yield Draft(group, ways, (step,), {}, nbytes, waves * seconds)


def _listed_dims(s: Scatter, roles: Roles, parts: int) -> tuple[Dim, ...]:
    """One dim per axis: a task has one point of the outer axes, and one of at most `parts` equal parts of the features."""
    numbers, dims = itertools.count(), list[Dim]()
    for p, a in enumerate(s.axes):
        tile = a.extent
        if p in roles.outer:
            tile = 1
        elif p in roles.features:
            cut = max(n for n in range(1, min(parts, a.extent) + 1) if a.extent % n == 0)
            if p == len(s.axes) - 1 and a.extent // cut * s.out.dtype.itemsize < LEAST_LANES_BYTES:
                cut = 1
            tile, parts = a.extent // cut, parts // cut
        stage = next(numbers) if tile < a.extent else None
        dims.append(Dim((p,), a.extent, tile, stage))
    return tuple(dims)


def _methods(
    s: Scatter, roles: Roles, axis: int, rows: int, features: int, target: Target
) -> Iterator[tuple[int, Listed]]:
    """Candidate numbers of threads per row, numbered from the one with the most lanes on."""
    words = max(1, s.out.dtype.itemsize // 4)
    share = roles.count(s) / roles.positions(s)
    whole = 1 << max(0, features - 1).bit_length()
    least = min(whole, LEAST_LANES_BYTES // min(LEAST_LANES_BYTES, s.out.dtype.itemsize))
    lanes, number = min(target.threads, whole), 0
    while lanes >= least:
        most = max(1, MOST_VALUES // words // 2)
        turns = -(-features // (lanes * most))
        each = -(-features // (lanes * turns))
        terms = max(1, min(MOST_VALUES // words // each, 8, math.ceil(share)))
        yield number, Listed(axis, rows, CAPACITY, LOADS, lanes, each, terms)
        lanes, number = lanes // 2, number + 1
