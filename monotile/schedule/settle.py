"""How the threads of a task share its part: the last choices that a method has, made by its family when tasks, places and what is on
chip are known."""

import msgspec

from monotile.codegen.view import Views
from monotile.ir.program import Program
from monotile.kernels.common.vectors import elements
from monotile.kernels.family import Settling
from monotile.kernels.registry import family_of
from monotile.plan.nodes import PlanNode, Stage
from monotile.plan.places import Place
from monotile.plan.walk import each_stage
from monotile.targets.target import Target


def settle(
    body: tuple[PlanNode, ...],
    program: Program,
    places: dict[str, tuple[Place, ...]],
    target: Target,
) -> tuple[PlanNode, ...]:
    """`body` with every method settled."""
    views = Views(program, places, body)

    def settled(stage: Stage) -> Stage:
        view = views.of(stage)
        steps = tuple(
            msgspec.structs.replace(s, method=family_of(s.method).settle(Settling(s, view, target)))
            for s in stage.steps
        )
        return msgspec.structs.replace(stage, steps=steps)

    return each_stage(body, settled)


def first_threads(body: tuple[PlanNode, ...], target: Target) -> tuple[PlanNode, ...]:
    """`body` with `Step.first_thread`: steps that follow each other without a barrier begin with the warps that the last one left idle, and
    so do those that read memory when the stage begins."""
    return each_stage(body, lambda stage: _in_turn(stage, target))


def _in_turn(stage: Stage, target: Target) -> Stage:
    firsts = [0] * len(stage.steps)
    early = [s.method.ahead("stage", "all") > 0 for s in stage.steps]
    for at_start in (True, False):
        free = 0  # the first thread of the idle warps
        for k, step in enumerate(stage.steps):
            if step.barrier and not at_start:
                free = 0
            count = step.method.thread_vectors(elements(step.dims))
            if count and early[k] == at_start:
                firsts[k] = free % target.threads
                last = firsts[k] + -(-count // target.warp) * target.warp
                free = last if firsts[k] + count <= target.threads else 0
    pairs = zip(stage.steps, firsts, strict=True)
    steps = tuple(msgspec.structs.replace(s, first_thread=first) for s, first in pairs)
    return msgspec.structs.replace(stage, steps=steps)
