"""Copies that a network begins with, cut finer: together they are often fewer tasks than there are workers."""

from itertools import takewhile

import msgspec

from monotile.schedule.plan import PlanNode, Stage, Turn
from monotile.target.target import Target


def spread(body: tuple[PlanNode, ...], target: Target) -> tuple[PlanNode, ...]:
    """`body`, whose first stages, copies in another order that wait for nothing, have tasks of as many threads as keep all workers
    busy at once, and of a warp at least."""
    first = tuple(takewhile(_turns, body))
    threads = target.threads
    while threads > target.warp and _tasks(finer := _cut(first, threads // 2)) <= target.workers:
        first, threads = finer, threads // 2
    return (*first, *body[len(first) :])


def _turns(node: PlanNode) -> bool:
    return isinstance(node, Stage) and isinstance(node.steps[0].method, Turn)


def _tasks(stages: tuple[PlanNode, ...]) -> int:
    return sum(s.grid[0] for s in stages if isinstance(s, Stage))


def _cut(stages: tuple[PlanNode, ...], threads: int) -> tuple[PlanNode, ...]:
    return tuple(_with_threads(s, threads) for s in stages if isinstance(s, Stage))


def _with_threads(stage: Stage, threads: int) -> Stage:
    """`stage` with tasks for `threads` threads: its step's first dim alone is cut."""
    (step,) = stage.steps
    method, (rest, behind) = step.method, step.dims
    assert isinstance(method, Turn)
    tile = min(rest.tile, method.vector * threads)
    dims = (msgspec.structs.replace(rest, tile=tile), behind)
    step = msgspec.structs.replace(step, dims=dims)
    return msgspec.structs.replace(stage, grid=(-(-rest.extent // tile),), steps=(step,))
