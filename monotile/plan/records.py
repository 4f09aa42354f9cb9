"""Memory layout of a profiled kernel's records: the start and end of each worker's tasks, waits and fills.

One word is a uint64. Each worker has a header and then room for `capacity` records:
    header   number of records (also those that found no room), clock and nanoseconds when it began, the same when it ended
    record   what: kind, stage (its number in the Plan) << 8, task << 32; then iteration, start, end, by the worker's clock
             (for a stage whose tasks alternate between teams: all of the worker's tasks as one, under the number of its first)
iteration: of the loops around the stage, row-major. A wait is for the hand-off before a stage, or within a task for messages; a fill is
the copy of pinned weights.
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
ON_CHIP = 128  # on-chip bytes of a block's records (CUDA)


class Recorded(Frozen, frozen=True):
    """A stage and the loops around it, outermost first."""

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
    """Records that a worker has room for: as many as the busiest makes in a call, at most `MOST`."""
    total = 0
    for r in recorded(plan):
        tasks = -(-math.prod(r.stage.grid) // plan.launch.workers)
        fills = sum(r.stage.name == x.stage for loop in r.loops for x in loop.resident)
        waits = r.stage.handoff != "none"
        waits += any(r.stage.name == x.stage for loop in r.loops for x in loop.receives)
        total += math.prod(r.extents) * (tasks + waits + fills)
    return min(total, MOST)


def words(plan: Plan) -> int:
    """Words of a profiled kernel's record memory."""
    return plan.launch.workers * (HEADER_WORDS + RECORD_WORDS * capacity(plan))
