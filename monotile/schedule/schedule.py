"""schedule: Program + Target -> Plan."""

import math

import msgspec

from monotile.analysis.states import steady_weights
from monotile.config import Options
from monotile.ir.program import Compute, Program, Scatter, statements
from monotile.kernels.draft import Context, Draft
from monotile.plan.access import overwritten
from monotile.plan.nodes import Launch, Plan, PlanNode, Repeat, Stage, Step
from monotile.schedule.handoffs import synchronise
from monotile.schedule.memory import place
from monotile.schedule.messages import Handed, hand_on
from monotile.schedule.pinned import hold, keep, kept_bytes
from monotile.schedule.prefetch import prefetch
from monotile.schedule.sharing import share_workers
from monotile.schedule.spread import spread
from monotile.schedule.tree import Tree, build, drafts_of
from monotile.targets.target import Target


def schedule(
    program: Program, target: Target, options: Options, context: Context | None = None
) -> Plan:
    """Stages, tiles, memory, placement and hand-offs for `program` on `target`.

    context: what was found before for a program with these weights.
    Raises ScheduleError where no legal Plan exists.
    """
    if options.workers is not None:
        target = msgspec.structs.replace(target, workers=options.workers)
    if context is None or context.target != target:
        context = Context.of(program, target)
    tree = build(program, context)
    if target.has.many_workers:
        tree = share_workers(tree, context)
    memory = place(program, tree)
    by_name = computes_of(program)
    old, weights = overwritten(program), steady_weights(program)
    on_chip = max((d.shared_bytes for d in drafts_of(tree)), default=0)
    plain = Handed(spread(_nodes(tree, target.workers), target), on_chip, 0)
    handed = hand_on(plain.body, program, by_name, memory.places, on_chip, old, target)

    def finished(h: Handed) -> tuple[tuple[PlanNode, ...], int]:
        body = synchronise(h.body, by_name, memory.places, target.workers, old)
        return keep(body, by_name, weights, h.on_chip, target, target.workers)

    body, shared_bytes = finished(handed)
    if handed.message_bytes and kept_bytes(body) < kept_bytes(finished(plain)[0]):
        handed = plain  # weights on chip are worth more
        body, shared_bytes = finished(plain)
    if target.has.prefetch:
        body = hold(body, by_name, weights, target)
        body = prefetch(body, by_name, weights, program.weights, target)
    launch = Launch(
        workers=target.workers,
        threads=target.threads,
        shared_bytes=shared_bytes,
        workspace_bytes=memory.workspace_bytes,
        message_bytes=handed.message_bytes,
    )
    return Plan(
        target=target.name,
        launch=launch,
        inputs=tuple(t.name for t in program.inputs),
        outputs=tuple(t.name for t in program.results),
        weights=tuple(part for w in program.weights for part in w.parts),
        places=memory.places,
        body=body,
    )


def computes_of(program: Program) -> dict[str, Compute | Scatter]:
    """Every Compute and Scatter by the name of its tensor."""
    return {s.out.name: s for s in statements(program.body) if isinstance(s, (Compute, Scatter))}


def _nodes(tree: Tree, workers: int) -> tuple[PlanNode, ...]:
    out: list[PlanNode] = []
    for node in tree:
        if isinstance(node, Draft):
            out.append(_stage(node, workers))
        else:
            axis = node.loop.axis
            out.append(Repeat(axis.name, axis.extent, _nodes(node.body, workers)))
    return tuple(out)


def _stage(draft: Draft, workers: int) -> Stage:
    """The first step waits for the worker's last task where both use on-chip memory, but for a product that begins within that."""
    chip = bool(draft.local) or any(s.scratch_bytes for s in draft.steps)
    again = math.prod(draft.grid) > workers and chip and not draft.steps[0].method.ahead("task")
    first: Step = msgspec.structs.replace(draft.steps[0], barrier=again)
    made = [s.out.name for s in draft.group.statements() if isinstance(s, Compute)]
    name = f"stage_{(made or draft.steps[-1].computes)[-1]}"
    return Stage(name, draft.grid, (first, *draft.steps[1:]), "none", 0)
