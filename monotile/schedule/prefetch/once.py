"""Weights that are read once a call make way for what is read again (CUDA).

Where all of them are more than the last-level cache holds, hardly any is there when the next call asks for it: kept as long as all else
it only puts out what stages hand each other (H100: Swin-B 604 -> 535, GPT-2 299.7 -> 294.8).
"""

import math
from collections.abc import Mapping

import msgspec

from monotile.ir.expr import Expr, axes_of, loads
from monotile.ir.program import Compute, Scatter, Weight
from monotile.plan.nodes import Contract, PlanNode, Repeat, Stage, Step
from monotile.schedule.prefetch.late import several_blocks, sides
from monotile.targets.target import Target


def read_once(
    body: tuple[PlanNode, ...],
    computes: Mapping[str, Compute | Scatter],
    weights: tuple[Weight, ...],
    target: Target,
    loops: frozenset[str] = frozenset(),
) -> tuple[PlanNode, ...]:
    """`body` with `once` set where a product reads such a weight, and all who read a part of it do so at the same time. loops: axes of
    those around."""
    held = {w.tensor.name for w in weights}
    if sum(w.tensor.size * w.tensor.dtype.itemsize for w in weights) <= target.l2_bytes:
        return body

    def changed(stage: Stage, step: Step) -> Step:
        method = step.method
        if not isinstance(method, Contract):
            return step
        m, n = step.dims[method.m], step.dims[method.n]
        together = math.prod(stage.grid) <= target.workers and not several_blocks(
            step, {method.m: method.block_m, method.n: method.block_n}
        )
        alone = {"left": n.extent <= method.block_n, "right": m.extent <= method.block_m}
        factors = zip(("left", "right"), sides(step, computes), strict=True)
        once = {
            side: msgspec.structs.replace(getattr(method, side), once=True)
            for side, factor in factors
            if _each_time_another(factor, held, loops) and (together or alone[side])
        }
        return msgspec.structs.replace(step, method=msgspec.structs.replace(method, **once))

    out: list[PlanNode] = []
    for node in body:
        if isinstance(node, Repeat):
            inner = read_once(node.body, computes, weights, target, loops | {node.axis})
            out.append(msgspec.structs.replace(node, body=inner))
        else:
            steps = tuple(changed(node, step) for step in node.steps)
            out.append(msgspec.structs.replace(node, steps=steps))
    return tuple(out)


def _each_time_another(factor: Expr, held: set[str], loops: frozenset[str]) -> bool:
    """Whether an operand is a weight, another one in each iteration of the loops."""
    found = loads(factor)
    return bool(found) and all(
        x.tensor.name in held and loops <= {a.name for i in x.index for a in axes_of(i)}
        for x in found
    )
