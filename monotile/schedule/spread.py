"""Cuts the copies at the beginning of a network finer: together they often have fewer tasks than there are workers."""

from collections.abc import Iterable

from monotile.kernels.registry import finer_copy
from monotile.plan.nodes import PlanNode, Stage
from monotile.targets.target import Target


def spread(body: tuple[PlanNode, ...], target: Target) -> tuple[PlanNode, ...]:
    """`body` with finer tasks for its leading stages, which copy to another order and wait for nothing: as many threads each as keep all
    workers busy at once, and a warp at least."""
    first = _first_copies(body)
    rest, threads = body[len(first) :], target.threads
    while threads > target.warp:
        threads //= 2
        finer = [finer_copy(stage, threads) for stage in first]
        if sum(stage.grid[0] for stage in finer) > target.workers:
            break
        first = finer
    return (*first, *rest)


def _first_copies(body: Iterable[PlanNode]) -> list[Stage]:
    out: list[Stage] = []
    for node in body:
        if not isinstance(node, Stage) or not node.steps[0].method.copies:
            break
        out.append(node)
    return out
