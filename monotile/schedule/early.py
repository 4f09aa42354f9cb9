"""What later steps of a stage read from memory is asked for at the stage's beginning: one latency instead of one a step."""

import math
from collections.abc import Mapping

import msgspec

from monotile.ir.expr import loads
from monotile.ir.program import Compute, Scatter
from monotile.schedule.plan import Map, PlanNode, Stage, Step, each_stage
from monotile.target.target import Target

MOST_EARLY = 32  # registers of a thread


def early_maps(
    body: tuple[PlanNode, ...], computes: Mapping[str, Compute | Scatter], target: Target
) -> tuple[PlanNode, ...]:
    """`body` with those maps early that come after another step, take one turn of the threads and read memory."""

    def changed(stage: Stage) -> Stage:
        own = {name for step in stage.steps for name in step.computes}
        steps = [stage.steps[0]]
        for step in stage.steps[1:]:
            early = _early(step, computes, own, target)
            method = msgspec.structs.replace(step.method, early=True) if early else step.method
            steps.append(msgspec.structs.replace(step, method=method))
        return msgspec.structs.replace(stage, steps=tuple(steps))

    return each_stage(body, changed)


def narrowed(width: int, elements: int, threads: int) -> int:
    """Neighbours that a thread takes at once: as few turns, with narrower vectors where threads would stand idle."""
    while width > 1 and elements * 2 // width <= threads:
        width //= 2
    return width


def _early(
    step: Step, computes: Mapping[str, Compute | Scatter], own: set[str], target: Target
) -> bool:
    """own: tensors that the stage computes."""
    if not isinstance(step.method, Map):
        return False
    elements = math.prod(d.tile + d.lead for d in step.dims)
    width = narrowed(step.method.vector, elements, target.threads)
    if elements > width * target.threads:
        return False
    statements = [computes[name] for name in step.computes]
    far = {
        x
        for s in statements
        if isinstance(s, Compute)
        for x in loads(s.body)
        if x.tensor.name not in own
    }
    words = sum(-(-x.dtype.itemsize * width // 4) for x in far)
    return 0 < words <= MOST_EARLY
