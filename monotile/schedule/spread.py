"""Copies that a network begins with, cut finer: together they are often fewer tasks than there are workers."""

from collections.abc import Iterable

import msgspec

from monotile.plan.nodes import PlanNode, Stage, Turn
from monotile.targets.target import Target


def spread(body: tuple[PlanNode, ...], target: Target) -> tuple[PlanNode, ...]:
    """`body`, whose first stages, copies in another order that wait for nothing, have tasks of as many threads as keep all workers
    busy at once, and of a warp at least."""
    first = _first_turns(body)
    rest, threads = body[len(first) :], target.threads
    while threads > target.warp:
        threads //= 2
        finer = [_cut(stage, threads) for stage in first]
        if sum(stage.grid[0] for stage in finer) > target.workers:
            break
        first = finer
    return (*first, *rest)


def _first_turns(body: Iterable[PlanNode]) -> list[Stage]:
    out: list[Stage] = []
    for node in body:
        if not isinstance(node, Stage) or not isinstance(node.steps[0].method, Turn):
            break
        out.append(node)
    return out


def _cut(stage: Stage, threads: int) -> Stage:
    """`stage` with tasks for `threads` threads: of its step the first dim alone is cut."""
    (step,) = stage.steps
    method, (rest, behind) = step.method, step.dims
    assert isinstance(method, Turn)
    tile = min(rest.tile, method.vector * threads)
    step = msgspec.structs.replace(step, dims=(msgspec.structs.replace(rest, tile=tile), behind))
    return msgspec.structs.replace(stage, grid=(-(-rest.extent // tile),), steps=(step,))
