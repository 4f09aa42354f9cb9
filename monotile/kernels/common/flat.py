"""Steps whose axes may be flattened freely, cut into whole waves of tasks in one dimension."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from monotile.analysis.dependence import loads_of
from monotile.ir.expr import Axis
from monotile.ir.held import live_of
from monotile.ir.program import Compute, Scatter
from monotile.kernels.common import cost
from monotile.kernels.draft import Context, Draft
from monotile.kernels.family import RowSite
from monotile.kernels.group import Group
from monotile.plan.nodes import Dim, Method, Step
from monotile.targets.target import Target

LIVE_STEP = 64  # a task's positions along a bounded axis are a multiple
Accesses = Callable[[cost.Extents], cost.Access]  # how threads access a task with these extents


def flat(
    group: Group,
    method: Method,
    context: Context,
    at_once: int,
    vector: int,
    accesses: Accesses,
    scratch: int = 0,
) -> Iterator[Draft]:
    """Drafts with all axes flattened to one, where live bounds allow it. at_once: elements that the threads of a worker process at once.
    vector: elements that one thread does."""
    anchor = group.steps[0][0]
    axes = anchor.axes
    total = math.prod(a.extent for a in axes)
    if _needs_dim(anchor):
        for dims in _along_live(anchor, context.target):
            yield draft(group, dims, method, context, accesses, scratch)
        return
    if isinstance(anchor, Compute) and (runs := runs_of(anchor)):
        dims = _alike(anchor, runs, vector, context.target)
        yield draft(group, dims, method, context, accesses, scratch)
        return
    for tile in _tiles(total, at_once, vector, context.target):
        dims = (Dim(tuple(range(len(axes))), total, tile, 0),)
        yield draft(group, dims, method, context, accesses, scratch)


def _needs_dim(s: Compute | Scatter) -> bool:
    """Whether a loop over some axis skips dead elements, so that the axis needs a dim of its own. A dynamic size that bounds the outermost
    axis needs none: whole tasks are skipped (`Stage.live`)."""
    bounded = [x for x in live_of(s) if x.axis in s.axes]
    outermost = next((a for a in s.axes if a.extent > 1), None)
    return not all(x.axis == outermost and x.prefix is not None for x in bounded)


def _along_live(s: Compute | Scatter, target: Target) -> Iterator[tuple[Dim, ...]]:
    """The last bounded axis as a separate dim: whole, or in as many parts as leave each worker one task."""
    live = live_of(s)
    p = max(s.axes.index(x.axis) for x in live if x.axis in s.axes)
    extent = s.axes[p].extent
    sides = (tuple(range(p)), tuple(range(p + 1, len(s.axes))))
    outer, inner = (math.prod(s.axes[q].extent for q in side) for side in sides)
    rows = Dim(sides[0], outer, -(-outer // target.workers), 0)
    if at := {y.axis: y.run for x in live for y in x.at}:
        yield _within_runs(s.axes, p, at, target)
        return
    rest = (Dim(sides[1], inner, inner, None),) if sides[1] else ()
    parts = max(1, target.workers // -(-outer // rows.tile))
    for n in dict.fromkeys((1, parts)):
        tile = cost.round_up(-(-extent // n), LIVE_STEP)
        along = Dim((p,), extent, min(extent, tile), 1 if sides[0] else 0)
        yield (*((rows,) if sides[0] else ()), along, *rest)


def _within_runs(
    axes: Sequence[Axis], p: int, at: Mapping[Axis, int], target: Target
) -> tuple[Dim, ...]:
    """Axis p whole; of the axes that bounds depend on, and of those before p, as much as gives each worker one task, within one run of each."""
    tasks, stage, out = 1, 0, list[Dim]()
    for q, a in enumerate(axes):
        if a not in at and q >= p:
            if q > p + 1 and out[-1].axes[-1] == q - 1 and out[-1].stage is None:
                last = out.pop()
                extent = last.extent * a.extent
                out.append(Dim((*last.axes, q), extent, extent, None))
            else:
                out.append(Dim((q,), a.extent, a.extent, None))
            continue
        run = at.get(a, 1)
        most = -(-a.extent * tasks // target.workers) if a in at else 1
        tile = next(n for n in range(max(1, min(most, run)), 0, -1) if run % n == 0)
        out.append(Dim((q,), a.extent, tile, stage))
        tasks, stage = tasks * -(-a.extent // tile), stage + 1
    return tuple(out)


def runs_of(s: Compute) -> dict[Axis, int]:
    """The number of neighbours along an axis that have the same terms, for the axes on which the ends of the terms depend."""
    runs: dict[Axis, int] = {}
    for at in (y for x in s.live if x.axis in s.reduce for y in x.at):
        runs[at.axis] = math.gcd(at.run, runs.get(at.axis, 0))
    return runs


def _alike(s: Compute, runs: Mapping[Axis, int], vector: int, target: Target) -> tuple[Dim, ...]:
    """About one task per worker, whose elements have the same terms. An axis of `runs` has a separate dim; adjacent other axes share one."""
    apart = math.prod(-(-a.extent // n) for a, n in runs.items())
    parts = max(1, target.workers // max(1, apart))
    groups = itertools.groupby(enumerate(s.axes), lambda at: at[1] if at[1] in runs else None)
    out: list[Dim] = []
    for stage, (axis, found) in enumerate(groups):
        axes = [p for p, _ in found]
        extent = math.prod(s.axes[p].extent for p in axes)
        unit = vector if axes[-1] == len(s.axes) - 1 else 1
        if axis is None:
            tile = min(extent, cost.round_up(-(-extent // parts), unit))
            parts = max(1, parts // -(-extent // tile))
        else:
            cuts = max(n for n in range(1, min(parts, runs[axis]) + 1) if runs[axis] % n == 0)
            tile, parts = runs[axis] // cuts, max(1, parts // cuts)
        out.append(Dim(tuple(axes), extent, tile, stage))
    return tuple(out)


def _tiles(total: int, at_once: int, vector: int, target: Target) -> Iterator[int]:
    """Tile sizes for whole waves: as many tasks as workers, or tasks of one element per thread if these are larger."""
    share = -(-total // target.workers)
    yield max(1, min(total, -(-share // at_once) * at_once))
    if (smaller := max(1, -(-share // vector) * vector)) < at_once:
        yield smaller


def draft(
    group: Group,
    dims: tuple[Dim, ...],
    method: Method,
    context: Context,
    accesses: Accesses,
    scratch: int = 0,
) -> Draft:
    """A draft of a group with one step, cut along `dims`; each dim that is cut has a tile axis of its own, in order."""
    anchor, target = group.steps[0][0], context.target
    grid = tuple(-(-d.extent // d.tile) for d in dims if d.stage is not None)
    tasks = max(1, math.prod(grid))
    extents = _extents(anchor, dims)
    after = cost.following(group.steps[0], target)
    seconds = cost.simple_seconds(anchor, extents, accesses(extents), frozenset(), after, target)
    names = tuple(s.out.name for s in group.steps[0])
    step = Step(names, dims, method, scratch=0, scratch_bytes=scratch)
    return Draft(group, grid, (step,), {}, scratch, -(-tasks // target.workers) * seconds)


def _extents(s: Compute | Scatter, dims: tuple[Dim, ...]) -> cost.Extents:
    """The extents along the axes of a task's contiguous part of each dim, from the last axis on."""
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


def in_rows(
    site: RowSite, method: Method, context: Context, accesses: Accesses, scratch: int = 0
) -> tuple[Step, float]:
    """The step and its seconds, with one dim per axis."""
    anchor, target, extents = site.anchor, context.target, site.extents
    after = cost.following(site.step, target)
    seconds = cost.simple_seconds(anchor, extents, accesses(extents), site.own, after, target)
    near = 0.0 if _reads_far(anchor, site.own) else target.model.common.near
    seconds -= target.latency_seconds * near
    return Step(site.names, site.dims, method, scratch_bytes=scratch), seconds


def innermost(site: RowSite) -> int:
    """The longest vector of a task along the last axis: the largest power of two that divides its part of it, without its lead."""
    last = len(site.anchor.axes) - 1
    size = site.extents[site.anchor.axes[last].name] - site.lead.get(last, 0)
    return size & -size


def _reads_far(s: Compute | Scatter, own: frozenset[str]) -> bool:
    return any(x.tensor.name not in own for x in loads_of(s))
