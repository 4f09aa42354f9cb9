"""How the threads of a task share its part: the last choices that a method has, made by its family when tasks, places and what is on
chip are known."""

import msgspec

from monotile.codegen.view import Views
from monotile.ir.program import Program
from monotile.kernels.family import Settling
from monotile.kernels.registry import family_of
from monotile.plan.nodes import Place, PlanNode, Stage, each_stage
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
