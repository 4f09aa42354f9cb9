"""What steps ask for ahead: later maps of a stage at its beginning, one latency instead of one a step; maps of many turns for several of
these, one latency instead of one a turn; reductions for their weights, before the hand-off of what they multiply them with."""

import math
from collections.abc import Iterable, Mapping

import msgspec

from monotile.ir.expr import Load, loads
from monotile.ir.program import Compute, Scatter
from monotile.plan.nodes import Map, PlanNode, Reduce, Stage, Step, each_stage, repeats
from monotile.schedule.pinned import distinct_loads, multiplied, task_bytes
from monotile.targets.model import fitted
from monotile.targets.target import Target

MOST_EARLY = 32  # registers of a thread for what is on its way
MOST_WEIGHTS = 80  # registers of a thread for the weights of reductions


def early_maps(
    body: tuple[PlanNode, ...], computes: Mapping[str, Compute | Scatter], target: Target
) -> tuple[PlanNode, ...]:
    """`body` with what its maps ask for ahead. Early are those that come after another step and take one turn of the threads."""

    def changed(stage: Stage) -> Stage:
        own = {name for step in stage.steps for name in step.computes}
        return msgspec.structs.replace(
            stage,
            steps=tuple(
                _ahead(step, k, computes, own, target) for k, step in enumerate(stage.steps)
            ),
        )

    return each_stage(body, changed)


def narrowed(width: int, elements: int, threads: int) -> int:
    """Neighbours that a thread takes at once: as few turns, with narrower vectors where threads would stand idle."""
    while width > 1 and elements * 2 // width <= threads:
        width //= 2
    return width


def _ahead(
    step: Step,
    number: int,
    computes: Mapping[str, Compute | Scatter],
    own: set[str],
    target: Target,
) -> Step:
    """own: tensors that the stage computes."""
    if not isinstance(step.method, Map):
        return step
    elements = math.prod(d.tile + d.lead for d in step.dims)
    width = narrowed(step.method.vector, elements, target.threads)
    turns = -(-elements // (width * target.threads))
    statements = [computes[name] for name in step.computes]
    read = {x for s in statements if isinstance(s, Compute) for x in loads(s.body)}
    far = _words((x for x in read if x.tensor.name not in own), width)
    early = turns == 1 and number > 0 and 0 < far <= MOST_EARLY
    words = _words((x for x in read if x.tensor.name not in step.computes), width)
    most = fitted(target.model.prefetch).turns  # their code is written out
    rounds = -(-turns // max(1, min(most, MOST_EARLY // max(1, words))))
    together = -(-turns // rounds) if far else 1
    return msgspec.structs.replace(step, method=Map(step.method.vector, early, together))


def _words(found: Iterable[Load], width: int) -> int:
    """Registers that vectors of `found` take."""
    return sum(-(-x.dtype.itemsize * width // 4) for x in found)


def early_reductions(
    body: tuple[PlanNode, ...],
    computes: Mapping[str, Compute | Scatter],
    weights: frozenset[str],
    target: Target,
) -> tuple[PlanNode, ...]:
    """`body` with reductions that ask for their weights early. weights: those that the launch does not change."""
    kept = {r.stage for loop in repeats(body) for r in loop.resident}

    def changed(stage: Stage) -> Stage:
        tasks = math.prod(stage.grid)
        if not 0 < tasks <= target.workers or stage.name in kept:
            return stage
        word = 4 * target.threads
        room = min(MOST_WEIGHTS, fitted(target.model.prefetch).weight_bytes // (word * tasks))
        steps: list[Step] = []
        for step in stage.steps:
            words = -(-_weight_bytes(step, computes, weights) // word)
            if 0 < words <= room:
                room -= words
                method = msgspec.structs.replace(step.method, early=True)
                step = msgspec.structs.replace(step, method=method)
            steps.append(step)
        return msgspec.structs.replace(stage, steps=tuple(steps))

    return each_stage(body, changed)


def weights_of(
    step: Step, computes: Mapping[str, Compute | Scatter], weights: frozenset[str]
) -> tuple[Load, ...]:
    """What a reduction of lanes multiplies with, of `weights` that its step reads nowhere else."""
    method, (anchor, *after) = step.method, (computes[name] for name in step.computes)
    if not isinstance(method, Reduce) or method.outputs > 1 or method.vector == 1:
        return ()
    if not isinstance(anchor, Compute):
        return ()
    statements = [s for s in (anchor, *after) if isinstance(s, Compute)]
    every = [x.tensor.name for s in statements for x in distinct_loads(s)]
    return tuple(x for x in multiplied(anchor, weights) if every.count(x.tensor.name) == 1)


def _weight_bytes(
    step: Step, computes: Mapping[str, Compute | Scatter], weights: frozenset[str]
) -> int:
    """That a task of a reduction multiplies with."""
    anchor = computes[step.computes[0]]
    found = weights_of(step, computes, weights)
    return sum(task_bytes(x, anchor, step.dims) for x in found if isinstance(anchor, Compute))
