"""Fixes how the threads of a task share its work: the last choices of a method, made by its family once tasks, places and on-chip memory
are known."""

import msgspec

from monotile.codegen.view import Views
from monotile.ir.program import Program
from monotile.kernels.common.vectors import elements
from monotile.kernels.family import Settling
from monotile.kernels.registry import family_of
from monotile.plan.nodes import PlanNode, Stage
from monotile.plan.places import Place
from monotile.plan.walk import each_stage, with_bodies
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
    """`body` with `Step.first_thread`. Consecutive steps without a barrier between them begin with the warps that the step before left
    idle. So do steps that read memory when the stage begins, and stages that each worker runs for itself."""
    out: list[PlanNode] = []
    idle = 0
    for node in body:
        if not isinstance(node, Stage):
            out.append(with_bodies(node, lambda inner: first_threads(inner, target)))
            idle = 0
            continue
        beside = node.everywhere and node.handoff == "none"
        stage, end = _in_turn(node, target, idle if beside else 0)
        idle = end if node.everywhere else 0
        out.append(stage)
    return tuple(out)


def _in_turn(stage: Stage, target: Target, begin: int) -> tuple[Stage, int]:
    """begin: the first idle thread. Gives the stage, and the first thread that is idle after it."""
    firsts = [0] * len(stage.steps)
    free = begin
    early = [s.method.reads_first for s in stage.steps]
    for at_start in (True, False):
        free = begin  # the first thread of the idle warps
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
    return msgspec.structs.replace(stage, steps=steps), free
