"""What a profiled kernel writes down, and where: the start and the end of all that each worker does.

One word is a uint64. Each worker has a header and then room for `capacity` records:
    header   records that it had (also those that found no room), clock and nanoseconds when it began, the same when it ended
    record   what: kind, stage (its number in the Plan) << 8, task << 32; then iteration, start, end, by the worker's clock
             (of a stage whose tasks alternate between teams: all that the worker has, as one, under the number of its first)
iteration: of the loops round the stage, row-major. A wait is the hand-off before a stage, or in a task for messages; a fill the copy of weights that
stay on chip.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from monotile.plan.nodes import Plan, PlanNode, Repeat, Stage
from monotile.plan.places import Frozen
from monotile.plan.walk import bodies_of

Kind = Literal["task", "wait", "fill"]
KINDS: tuple[Kind, ...] = get_args(Kind)
HEADER_WORDS, RECORD_WORDS = 5, 4
STAGE_BIT, TASK_BIT = 8, 32
MOST = 1 << 15  # records of a worker: 1 MiB
ON_CHIP = 128  # bytes that a block's notes take on chip (CUDA)


class Recorded(Frozen, frozen=True):
    """A stage and the loops round it, outermost first."""

    stage: Stage
    loops: tuple[Repeat, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(loop.extent for loop in self.loops)


def recorded(plan: Plan) -> tuple[Recorded, ...]:
    """The stages by number."""
    return tuple(_recorded(plan.body, ()))


def _recorded(nodes: Sequence[PlanNode], loops: tuple[Repeat, ...]) -> Iterator[Recorded]:
    for node in nodes:
        match node:
            case Stage():
                yield Recorded(node, loops)
            case _:
                inner = (*loops, node) if isinstance(node, Repeat) else loops
                for body in bodies_of(node):
                    yield from _recorded(body, inner)


def capacity(plan: Plan) -> int:
    """Records that a worker has room for: all that the busiest has in a call, `MOST` at most."""
    total = 0
    for r in recorded(plan):
        tasks = -(-math.prod(r.stage.grid) // plan.launch.workers)
        fills = sum(r.stage.name == x.stage for loop in r.loops for x in loop.resident)
        waits = r.stage.handoff != "none"
        waits += any(r.stage.name == x.stage for loop in r.loops for x in loop.receives)
        total += math.prod(r.extents) * (tasks + waits + fills)
    return min(total, MOST)


def words(plan: Plan) -> int:
    """Of the memory that a profiled kernel is given."""
    return plan.launch.workers * (HEADER_WORDS + RECORD_WORDS * capacity(plan))
