"""Groups that work row by row as one step: lanes hold their row in registers from its loads to its stores (CUDA).

As separate steps, a group reads its intermediate results from on-chip memory after a block barrier, and loads the operands of several steps
repeatedly. Here all operands of a row are loaded at once, and its sums are known to all its lanes.
"""

import math
from collections.abc import Iterator

import msgspec

from monotile.ir.program import Compute
from monotile.kernels.common.moments import moments
from monotile.kernels.common.register_rows import MOST_WORDS, PART, RowWork, even, row_work
from monotile.kernels.common.rowwise import Rowwise, rowwise
from monotile.kernels.draft import Context, Draft
from monotile.kernels.group import Group
from monotile.kernels.rowwise.method import HoldRows
from monotile.plan.nodes import Dim, Step
from monotile.targets.target import Target

VECTOR = 8  # widest vector of a lane


def cut(group: Group, context: Context) -> Iterator[Draft]:
    """Drafts of `group` with rows in registers; none if it does not work row by row, or its rows are too long."""
    target = context.target
    if len(group.steps) == 1:
        return
    computes = [s for s in group.statements() if isinstance(s, Compute)]
    if not target.has.lockstep or len(computes) < sum(map(len, group.steps)):
        return
    found = rowwise(computes)
    if found is None:
        return
    anchor = found.anchor
    rows = math.prod(a.extent for a in anchor.axes[: found.rows])
    tile = -(-rows // target.workers)
    grid = (-(-rows // tile),)
    dims = [Dim(tuple(range(found.rows)), rows, tile, 0)] if found.rows else []
    dims += [
        Dim((p,), anchor.axes[p].extent, anchor.axes[p].extent, None)
        for p in range(found.rows, len(anchor.axes))
    ]
    pairs = tuple(moments(found).items())
    work = row_work(found, len(pairs), target.model.common.transcendental)
    lanes = target.threads
    while lanes >= 1:
        vector = _vector(found, lanes)
        method = HoldRows(found.listed.index(anchor.out.name), lanes, vector, *found.names)
        if even(work.length, method, target):
            method = msgspec.structs.replace(method, moments=pairs)
        rounds = -(-tile // (target.threads // lanes))
        if work.words(method, rounds) <= MOST_WORDS:
            scratch = scratch_bytes(found, target)
            step = Step(found.listed, tuple(dims), method, scratch_bytes=scratch)
            seconds = _seconds(work, method, tile, target)
            yield Draft(group, grid if found.rows else (1,), (step,), {}, scratch, seconds)
        lanes //= 2


def scratch_bytes(found: Rowwise, target: Target) -> int:
    """On-chip bytes for a partial result of every sum and warp."""
    return found.sums * target.threads // target.warp * PART


def _vector(found: Rowwise, lanes: int) -> int:
    """The vector width with the fewest iterations, narrower where lanes would be idle."""
    vector = math.gcd(VECTOR, found.span[-1])
    while vector > 1 and 2 * math.prod(found.span) // vector <= lanes:
        vector //= 2
    return vector


def _seconds(work: RowWork, method: HoldRows, tile: int, target: Target) -> float:
    """Seconds of a task: its groups of lanes process their rows in rounds, and prefetch the next round's."""
    groups = target.threads // method.lanes
    first = target.latency_seconds * (1 + work.meeting(method, target))
    first += work.moved(min(tile, groups), target) + work.arithmetic(method, target)
    return first + (-(-tile // groups) - 1) * work.further_round(method, groups, target)
