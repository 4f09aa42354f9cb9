"""Bounds computed work by sizes of the call: which Computes, walks and tasks of a Plan skip dead elements."""

import functools
import math
from collections.abc import Mapping, Sequence

import msgspec

from monotile.analysis.contraction import contraction
from monotile.analysis.ends import segment_ends
from monotile.analysis.uses import mentions
from monotile.ir.program import At, Compute, Live, Program, Scatter, statements
from monotile.kernels.draft import Context
from monotile.kernels.family import Match
from monotile.kernels.registry import family_of, in_runs, match, tiled
from monotile.plan.live_tasks import live_tasks
from monotile.plan.nodes import Bound, Choose, PlanNode, Repeat, Stage, Step
from monotile.plan.one_point import one_point
from monotile.plan.places import Place
from monotile.plan.walk import each_stage, with_bodies
from monotile.targets.target import Target
from monotile.transform.live.bound import bound_live

LEAST_ROWS = 16  # of a matrix of a batch, or of a run
FEW_ROWS = 32  # of a product that tensor cores would compute, all of K
# The most rows that a task has of a run whose ends are combined; on a CPU so few that most of them end at the same place.
RUN, WARPGROUPS_RUN, ROWS_RUN = 64, 128, 32


def bound(program: Program, target: Target, context: Context) -> Program:
    """`program` bounded by scalars of the call. Large products are bounded only where a family can walk a part of K."""
    computes = {s.out.name: s for s in statements(program.body) if isinstance(s, Compute)}
    uses = mentions(program)

    @functools.cache
    def matched(c: Compute) -> Match | None:
        found = match(c, computes, context)
        one_step = found is not None and found.data is not None and found.closed(c, uses)
        return found if one_step else None

    @functools.cache
    def owners() -> Mapping[str, Match]:
        found = [(c, m) for c in computes.values() if (m := matched(c)) is not None]
        return {s.out.name: m for c, m in found for s in (*m.inner, c)}

    def in_parts(c: Compute, at: Sequence[At]) -> bool:
        if not target.has.lockstep:  # rows of a tile end alike
            return len(c.reduce) == 1 and at[-1].run > 1
        own = owners().get(c.out.name)
        return own is not None and in_runs(own, c, at)

    def apart(c: Compute, at: Sequence[At], wide: bool) -> bool:
        return in_parts(c, at) if wide else _apart(c, at, context)

    def may(c: Compute) -> bool:
        if segment_ends(c) is not None:  # one end for all of them bounds little
            return False
        if not tiled(c, context):
            return True
        if not target.has.lockstep:
            return len(c.reduce) == 1
        return _rows(c) <= FEW_ROWS or matched(c) is not None

    return bound_live(program, may, apart, _run(target))


def _run(target: Target) -> int:
    if not target.has.lockstep:
        return ROWS_RUN
    return WARPGROUPS_RUN if "wgmma" in target.instructions else RUN


def _apart(c: Compute, at: Sequence[At], context: Context) -> bool:
    """Whether `c` is a batched or grouped product whose matrices, or runs of rows, may end at different k, with enough rows for tiles of
    its own."""
    found = contraction(c)
    if found is None or len(c.reduce) != 1 or not tiled(c, context):
        return False
    runs = {(c.axes[p], size) for p, size in found.grains}
    batch = {(c.axes[p], 1) for p in found.batch}
    rows = min((size for _, size in runs), default=_rows(c))
    return {(x.axis, x.run) for x in at} <= runs | batch and rows >= LEAST_ROWS


def _rows(c: Compute) -> int:
    """The shorter of a product's two output extents."""
    found = contraction(c)
    sides = () if found is None else (found.m, found.n)
    return min((math.prod(c.axes[p].extent for p in side) for side in sides), default=0)


def bound_walks(
    body: tuple[PlanNode, ...], statements: Mapping[str, Compute | Scatter], target: Target
) -> tuple[PlanNode, ...]:
    """`body` with `Step.bounds` where a family can skip dead elements. Where threads share a task and a size of the call already skips
    whole tasks (`bound_tasks`), a bound within the last live task is not worth its cost."""

    def by_tasks(step: Step, anchor: Compute, x: Live) -> bool:
        own = (d for d in step.dims if x.axis in [anchor.axes[p] for p in d.axes])
        cut = target.has.lockstep and any(d.stage is not None for d in own)
        return cut and x.prefix is not None

    def bounded(step: Step) -> Step:
        anchor = statements[step.computes[step.anchor]]
        if not isinstance(anchor, Compute) or not anchor.live:
            return step
        if not family_of(step.method).bounded(anchor, step.method, target):
            return step
        known = (x for x in anchor.live if one_point(step, anchor, x.at))
        bounds = tuple(_bound(x) for x in known if not by_tasks(step, anchor, x))
        return msgspec.structs.replace(step, bounds=bounds)

    def each(stage: Stage) -> Stage:
        return msgspec.structs.replace(stage, steps=tuple(map(bounded, stage.steps)))

    return each_stage(body, each)


def bound_tasks(
    body: tuple[PlanNode, ...], program: Program, places: Mapping[str, tuple[Place, ...]]
) -> tuple[PlanNode, ...]:
    """`body` with `Stage.live`: tasks beyond a size of the call are skipped, and the others are spread over all workers. Tasks that send
    messages to each other keep their workers."""
    statements_ = {s.out.name: s for s in statements(program.body) if isinstance(s, (Compute, Scatter))}  # fmt: skip

    def bounded(node: PlanNode) -> PlanNode:
        match node:
            case Stage():
                found = live_tasks(node, statements_, places)
                return msgspec.structs.replace(node, live=found) if found else node
            case Repeat() if node.messages:
                return node
            case Repeat() | Choose():
                return with_bodies(node, lambda inner: tuple(map(bounded, inner)))

    return tuple(map(bounded, body))


def _bound(x: Live) -> Bound:
    first, last = (t.name if t is not None else "" for t in x.ends)
    return Bound(x.axis.name, first, last, x.known, tuple((a.axis.name, a.run) for a in x.at))
