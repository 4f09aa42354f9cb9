"""Turns the stages of a tree into the Plan's nodes, before they have workers and hand-offs."""

import math

import msgspec

from monotile.ir.program import Compute
from monotile.kernels.draft import Draft
from monotile.plan.nodes import Choose, PlanNode, Repeat, Stage, Step
from monotile.schedule.tree import Fork, Nest, Tree


def stages_of(tree: Tree, workers: int) -> tuple[PlanNode, ...]:
    """A Stage for each Draft, a Repeat for each loop, a Choose for each branch."""
    out: list[PlanNode] = []
    for node in tree:
        match node:
            case Draft():
                out.append(_stage(node, workers))
            case Nest(loop, body):
                count, looked = (t.name if t else "" for t in (loop.count, loop.looked_at))
                out.append(
                    Repeat(
                        loop.axis.name,
                        loop.axis.extent,
                        stages_of(body, workers),
                        count=count,
                        predicate=looked,
                    )
                )
            case Fork(branch, then, otherwise):
                sides = (stages_of(otherwise, workers), stages_of(then, workers))
                out.append(Choose(branch.predicate.name, sides))
    return tuple(out)


def stage_name(draft: Draft) -> str:
    """The name of the last tensor that the stage computes."""
    made = [s.out.name for s in draft.group.statements() if isinstance(s, Compute)]
    return f"stage_{(made or draft.steps[-1].computes)[-1]}"


def _stage(draft: Draft, workers: int) -> Stage:
    """The first step waits for the worker's last task where both use on-chip memory; a product that prefetches during that task needs no
    such barrier."""
    chip = bool(draft.local) or any(s.scratch_bytes for s in draft.steps)
    again = math.prod(draft.grid) > workers and chip and not draft.steps[0].method.ahead("task")
    first: Step = msgspec.structs.replace(draft.steps[0], barrier=again)
    return Stage(stage_name(draft), draft.grid, (first, *draft.steps[1:]), "none", 0)
