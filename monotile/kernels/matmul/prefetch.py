"""Prefetches of products: the first chunks of a weight before their hand-off; and which weights are evicted first from the last-level
cache."""

import math

from monotile.analysis.contraction import factors
from monotile.ir.expr import Load, axes_of, loads
from monotile.kernels.common.late import several_blocks
from monotile.kernels.family import Prefetching, Statements
from monotile.kernels.matmul.gate import sums_of
from monotile.kernels.matmul.method import Matmul
from monotile.plan.nodes import Prefetch, Step
from monotile.targets.model import fitted


def operands(step: Step, statements: Statements) -> dict[str, tuple[Load, ...]]:
    """The loads of the left and of the right operand of a step; for several products side by side, of all of them."""
    m, sums = step.method, sums_of(step, statements)
    assert isinstance(m, Matmul)
    sides = [factors(s, swapped=m.swapped) for s in sums]
    right = dict.fromkeys(x for _, factor in sides for x in loads(factor))
    return {"left": loads(sides[0][0]), "right": tuple(right)}


def prefetch(where: Prefetching, at: str) -> tuple[Prefetch, ...]:
    """At "handoff" the first chunks of one operand, if that is a weight. At "use" the weights that each call reads once: where all of
    them exceed the last-level cache, hardly any is still there when the next call reads it. If kept as long as everything else, they
    only evict the values that stages pass to each other (H100: Swin-B 604 -> 535, GPT-2 299.7 -> 294.8)."""
    m = where.step.method
    assert isinstance(m, Matmul)
    if at == "handoff" and where.number == 0 and m.left.copy == m.right.copy == "async":
        chunks = min(fitted(where.target.model.prefetch).chunks, m.depth - 1)
        for side, read in operands(where.step, where.statements).items():
            if chunks and {x.tensor.name for x in read} <= where.steady:
                return (Prefetch(side, "handoff", chunks),)
    if at == "use" and where.streamed:
        return tuple(
            Prefetch(side, "use", cache="evict_first")
            for side, read in operands(where.step, where.statements).items()
            if _each_time_another(read, where) and _read_once(side, where)
        )
    return ()


def _read_once(side: str, where: Prefetching) -> bool:
    """Whether all readers of a part of an operand read it at the same time, or one task does."""
    step, m = where.step, where.step.method
    assert isinstance(m, Matmul)
    rows, columns = step.dims[m.m], step.dims[m.n]
    together = math.prod(where.stage.grid) <= where.target.workers and not several_blocks(
        step, {m.m: m.block_m, m.n: m.columns}
    )
    alone = columns.extent <= m.columns if side == "left" else rows.extent <= m.block_m
    return together or alone


def _each_time_another(read: tuple[Load, ...], where: Prefetching) -> bool:
    """Whether an operand is a weight, a different one in each iteration of the loops, at whatever data-dependent index."""
    found = {*read} - {y for x in read for i in x.index for y in loads(i)}
    return bool(found) and all(
        x.tensor.name in where.streamed
        and where.loops <= {a.name for i in x.index for a in axes_of(i)}
        for x in found
    )
