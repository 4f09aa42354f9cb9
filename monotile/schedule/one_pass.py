"""Merges consecutive steps of a task that read the same data into one step that reads it once (`Family.one_pass`)."""

from collections.abc import Mapping

import msgspec

from monotile.ir.program import Compute, Scatter
from monotile.kernels.registry import family_of
from monotile.plan.nodes import PlanNode, Stage, Step
from monotile.plan.walk import each_stage, stages_in
from monotile.targets.target import Target


def in_one_pass(
    body: tuple[PlanNode, ...],
    statements: Mapping[str, Compute | Scatter],
    on_chip: int,
    target: Target,
) -> tuple[tuple[PlanNode, ...], int]:
    """`body` with such steps, and the on-chip bytes of the stage that needs most, which were `on_chip`."""

    def joined(stage: Stage) -> Stage:
        out: list[Step] = []
        lost = False  # a removed step had a barrier before it
        for step in stage.steps:
            one = family_of(out[-1].method).one_pass(out[-1], step, statements, target) if out else None  # fmt: skip
            if one is not None:
                out[-1], lost = one, lost or step.barrier
                continue
            out.append(msgspec.structs.replace(step, barrier=step.barrier or lost))
            lost = False
        return msgspec.structs.replace(stage, steps=tuple(out))

    body = each_stage(body, joined)
    every = (step for stage in stages_in(body) for step in stage.steps)
    return body, max((on_chip, *(s.scratch + s.scratch_bytes for s in every)))
