"""Prefetches of reductions: weights into registers before the hand-off for their vectors; and the weights that a loop may pin on chip."""

import math

from monotile.analysis.ends import segment_ends
from monotile.codegen.address import WIDEST
from monotile.ir.program import Compute
from monotile.kernels.common.cost import distinct_loads
from monotile.kernels.common.vectors import fitting
from monotile.kernels.family import Pinnable, Prefetching, Statements
from monotile.kernels.reduction.form import form_of
from monotile.kernels.reduction.method import Reduce
from monotile.kernels.reduction.weights import held_early, multiplied, task_bytes, weight_bytes
from monotile.plan.nodes import Prefetch, Step
from monotile.targets.model import fitted
from monotile.targets.target import Target

MOST_WORDS = 80  # registers of a thread for the weights of reductions


def prefetch(where: Prefetching, at: str) -> tuple[Prefetch, ...]:
    """At "stage": the weights of the step, if registers are left by the steps before it."""
    stage, target = where.stage, where.target
    tasks = math.prod(stage.grid)
    if at != "stage" or where.step.bounds or not 0 < tasks <= target.workers or where.pinned:
        return ()
    if not held_early(where.step, where.view, where.steady, target):
        return ()
    word = 4 * target.threads

    def words(step: Step) -> int:
        return -(-weight_bytes(step, where.statements, where.steady) // word)

    before = (s for s in stage.steps[: where.number] if s.method.ahead("stage", "weights"))
    room = min(MOST_WORDS, fitted(target.model.prefetch).weight_bytes // (word * tasks)) - sum(
        map(words, before)
    )
    return (Prefetch("weights", "stage"),) if 0 < words(where.step) <= room else ()


def pinnable(
    step: Step, statements: Statements, weights: frozenset[str], target: Target
) -> tuple[Pinnable, ...]:
    """The weights of a reduction by lanes that a loop may pin on chip."""
    anchor, method = statements[step.computes[0]], step.method
    assert isinstance(method, Reduce)
    if (
        method.side_by_side
        or step.bounds
        or not isinstance(anchor, Compute)
        or segment_ends(anchor)
    ):
        return ()
    steady = target.has.lockstep and form_of(anchor, step.dims, method, target.threads).steady
    every = distinct_loads(anchor.body)
    last = anchor.reduce[method.order[-1] if method.order else -1]
    return tuple(
        Pinnable(
            x,
            every.index(x),
            task_bytes(x, anchor, step.dims),
            steady,
            fitting(WIDEST // x.dtype.itemsize, last.extent),
        )
        for x in multiplied(anchor, weights)
    )
