"""What products ask for ahead: the first chunks of a weight before their hand-off; and which weights leave the last-level cache first."""

import math

from monotile.analysis.contraction import factors
from monotile.ir.expr import Expr, axes_of, loads
from monotile.ir.program import Compute
from monotile.kernels.common.late import several_blocks
from monotile.kernels.family import Prefetching, Statements
from monotile.kernels.matmul.method import Matmul
from monotile.plan.nodes import Prefetch, Step
from monotile.targets.model import fitted


def operands(step: Step, statements: Statements) -> dict[str, Expr]:
    """What the left and the right operand of a step are."""
    anchor, m = statements[step.computes[step.anchor]], step.method
    assert isinstance(m, Matmul)
    assert isinstance(anchor, Compute)
    left, right = factors(anchor, swapped=m.swapped)
    return {"left": left, "right": right}


def prefetch(where: Prefetching, at: str) -> tuple[Prefetch, ...]:
    """At "handoff" the first chunks of one operand, if that is a weight. At "use" the weights that each call reads once: where all of them
    are more than the last-level cache holds, hardly any is there when the next call asks for it, and kept as long as all else it only
    puts out what stages hand each other (H100: Swin-B 604 -> 535, GPT-2 299.7 -> 294.8)."""
    m = where.step.method
    assert isinstance(m, Matmul)
    if at == "handoff" and where.number == 0 and m.left.copy == m.right.copy == "async":
        chunks = min(fitted(where.target.model.prefetch).chunks, m.depth - 1)
        for side, factor in operands(where.step, where.statements).items():
            if chunks and {x.tensor.name for x in loads(factor)} <= where.steady:
                return (Prefetch(side, "handoff", chunks),)
    if at == "use" and where.streamed:
        return tuple(
            Prefetch(side, "use", cache="evict_first")
            for side, factor in operands(where.step, where.statements).items()
            if _each_time_another(factor, where) and _read_once(side, where)
        )
    return ()


def _read_once(side: str, where: Prefetching) -> bool:
    """Whether all who read a part of an operand do so at the same time, or one task does."""
    step, m = where.step, where.step.method
    assert isinstance(m, Matmul)
    rows, columns = step.dims[m.m], step.dims[m.n]
    together = math.prod(where.stage.grid) <= where.target.workers and not several_blocks(
        step, {m.m: m.block_m, m.n: m.block_n}
    )
    alone = columns.extent <= m.block_n if side == "left" else rows.extent <= m.block_m
    return together or alone


def _each_time_another(factor: Expr, where: Prefetching) -> bool:
    """Whether an operand is a weight, another one in each iteration of the loops, wherever data says that it lies."""
    found = {*loads(factor)} - {y for x in loads(factor) for i in x.index for y in loads(i)}
    return bool(found) and all(
        x.tensor.name in where.streamed
        and where.loops <= {a.name for i in x.index for a in axes_of(i)}
        for x in found
    )
