"""A stage that begins with a product waits for its hand-off when it has found its addresses, not before (CUDA).

What a product's copies start from depends on the task alone: some hundred instructions, for which there is time between a
worker's arrival at the barrier and its leaving it.
"""

import math
from collections.abc import Mapping

import msgspec

from monotile.ir.expr import Load, loads
from monotile.ir.program import Compute, Scatter
from monotile.schedule.plan import Contract, Dim, Map, PlanNode, Stage, each_stage


def late_waits(
    body: tuple[PlanNode, ...], computes: Mapping[str, Compute | Scatter], workers: int
) -> tuple[PlanNode, ...]:
    """`body` with `late` set where a stage can be so."""

    def changed(stage: Stage) -> Stage:
        late = stage.handoff == "grid" and why_not_late(stage, computes, workers) is None
        return msgspec.structs.replace(stage, late=late)

    return each_stage(body, changed)


def why_not_late(
    stage: Stage, computes: Mapping[str, Compute | Scatter], workers: int
) -> str | None:
    """Why `stage` cannot wait within its first step; None if it can."""
    if math.prod(stage.grid) > workers:
        return "a worker has several tasks"
    first, *rest = stage.steps
    if not isinstance(first.method, Contract):
        return "it does not begin with a contraction"
    blocks = {first.method.m: first.method.block_m, first.method.n: first.method.block_n}
    if any(_walked(dim) > blocks.get(k, 1) for k, dim in enumerate(first.dims)):
        return "a task has several blocks"
    if any(isinstance(step.method, Map) and step.method.early for step in rest):
        return "a later step reads memory before it"
    anchor = computes[first.computes[first.anchor]]
    if not isinstance(anchor, Compute) or any(map(_looks_up, loads(anchor.body))):
        return "its addresses are in memory"
    return None


def _walked(dim: Dim) -> int:
    """Positions that a task walks."""
    return dim.extent if dim.stage is None else dim.tile + dim.lead


def _looks_up(x: Load) -> bool:
    return any(loads(i) for i in x.index)
