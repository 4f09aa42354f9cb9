"""A stage waits for its hand-off when it has found its addresses, not before (CUDA).

What the copies of a product, or of attention, start from depends on the task alone: some hundred instructions, for which there
is time between a worker's arrival at the barrier and its leaving it. The first chunks of a weight are asked for then as well, the
weights that rows are scaled by, and those of a reduction.
"""

import math
from collections.abc import Mapping

import msgspec

from monotile.analysis.contraction import contraction
from monotile.ir.expr import Expr, Load, loads
from monotile.ir.program import Compute, Scatter
from monotile.plan.nodes import (
    Attend,
    Contract,
    HoldRows,
    Map,
    Operand,
    PlanNode,
    Reduce,
    Stage,
    Step,
    each_stage,
)
from monotile.targets.model import fitted
from monotile.targets.target import Target


def late_waits(
    body: tuple[PlanNode, ...],
    computes: Mapping[str, Compute | Scatter],
    weights: frozenset[str],
    target: Target,
) -> tuple[PlanNode, ...]:
    """`body` with `late` set where a stage can be so, and then `ahead`. weights: those that the launch does not change."""

    most = fitted(target.model.prefetch).chunks

    def changed(stage: Stage) -> Stage:
        if stage.handoff != "grid" or why_not_late(stage, computes, target.workers) is not None:
            return stage
        first, *rest = stage.steps
        if isinstance(first.method, Contract):
            first = _ahead(first, computes, weights, most)
        return msgspec.structs.replace(stage, late=True, steps=(first, *rest))

    return each_stage(body, changed)


def _ahead(
    step: Step, computes: Mapping[str, Compute | Scatter], weights: frozenset[str], most: int
) -> Step:
    """`step` with the first chunks of one operand asked for ahead, if that is a weight. More than `most` of them hold up the
    hand-off itself: what polls it waits behind them."""
    method = step.method
    assert isinstance(method, Contract)
    operands = {"left": method.left, "right": method.right}
    if any(o.copy != "async" for o in operands.values()):
        return step
    chunks = min(most, method.depth - 1)
    for side, factor in zip(operands, sides(step, computes), strict=True):
        if chunks and {x.tensor.name for x in loads(factor)} <= weights:
            operand: Operand = msgspec.structs.replace(operands[side], ahead=chunks)
            method = msgspec.structs.replace(method, **{side: operand})
            return msgspec.structs.replace(step, method=method)
    return step


def sides(step: Step, computes: Mapping[str, Compute | Scatter]) -> tuple[Expr, Expr]:
    """What the left and the right operand of a contraction step are."""
    method, anchor = step.method, computes[step.computes[step.anchor]]
    assert isinstance(method, Contract)
    assert isinstance(anchor, Compute)
    found = contraction(anchor)
    assert found is not None
    return found.facing(step.dims[method.m].axes)


def why_not_late(
    stage: Stage, computes: Mapping[str, Compute | Scatter], workers: int
) -> str | None:
    """Why `stage` cannot wait within its first step; None if it can."""
    if math.prod(stage.grid) > workers and not stage.steps[0].following:
        return "a worker has several tasks"
    first, *rest = stage.steps
    if isinstance(first.method, HoldRows):
        return _rows_not_late(first, stage, computes)
    if any(isinstance(step.method, Map) and step.method.early for step in rest):
        return "a later step reads memory before it"
    if isinstance(first.method, Reduce) and first.method.early:
        return None
    match first.method:
        case Contract(m=m, n=n, block_m=block_m, block_n=block_n):
            blocks = {m: block_m, n: block_n}
        case Attend(m=m, n=n, block_m=block_m):
            blocks = {m: block_m, n: first.dims[n].extent}
        case _:
            return "it begins neither with a contraction, nor with attention, nor with rows in registers, nor with weights that are asked for early"
    if several_blocks(first, blocks):
        return "a task has several blocks"
    made = [computes[name] for name in first.computes[: first.anchor + 1]]
    bodies = [s.body for s in made if isinstance(s, Compute)]
    if len(bodies) < len(made) or any(_looks_up(x) for body in bodies for x in loads(body)):
        return "its addresses are in memory"
    return None


def _rows_not_late(
    step: Step, stage: Stage, computes: Mapping[str, Compute | Scatter]
) -> str | None:
    if len(stage.steps) > 1:
        return "it has several steps"
    bodies = [s.body for n in step.computes if isinstance(s := computes[n], Compute)]
    if any(_looks_up(x) for body in bodies for x in loads(body)):
        return "its addresses are in memory"
    return None


def why_not_ahead(
    stage: Stage, computes: Mapping[str, Compute | Scatter], weights: frozenset[str]
) -> str | None:
    """Why `stage` cannot ask for operands before its hand-off as it does; None if it can. weights: as above."""
    for number, step in enumerate(stage.steps):
        if not isinstance(step.method, Contract):
            continue
        for operand, factor in zip(
            (step.method.left, step.method.right), sides(step, computes), strict=True
        ):
            if operand.ahead and (number > 0 or not stage.late):
                return "it does not wait late, in that step"
            if operand.ahead and not {x.tensor.name for x in loads(factor)} <= weights:
                return "what it reads may be made in this launch"
    return None


def several_blocks(step: Step, blocks: Mapping[int, int]) -> bool:
    """Whether a task of the step walks more than one block. blocks: how long one is along some of its dims; 1 along others."""
    walked = (d.extent if d.stage is None else d.tile + d.lead for d in step.dims)
    return any(size > blocks.get(k, 1) for k, size in enumerate(walked))


def _looks_up(x: Load) -> bool:
    return any(loads(i) for i in x.index)
