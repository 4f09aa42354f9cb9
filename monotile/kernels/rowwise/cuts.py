"""Groups that work row by row as one step: lanes hold their row in registers from its loads to its stores (CUDA).

Cut step by step, a group reads what it has made from on-chip memory after a barrier of the block, and what several steps
read from memory comes as often. Here all that a row reads is asked for at once, and its sums are known to all its lanes.
"""

import math
from collections.abc import Iterable, Iterator

import msgspec

from monotile.analysis.dependence import loads_of
from monotile.ir.expr import Expr, Load, axes_of, loads, substitute
from monotile.ir.program import Compute
from monotile.kernels.common import cost
from monotile.kernels.draft import Context, Draft
from monotile.kernels.group import Group
from monotile.kernels.rowwise.match import Rowwise, rowwise
from monotile.kernels.rowwise.method import HoldRows
from monotile.kernels.rowwise.moments import moments
from monotile.plan.nodes import Dim, Step
from monotile.targets.model import fitted
from monotile.targets.target import Target

VECTOR = 8  # elements that a lane takes at once, at most
MOST_WORDS = 96  # registers of a thread for what it reads and holds
PART = 8  # bytes of a part of a sum, at most


def cut(group: Group, context: Context) -> Iterator[Draft]:
    """The ways to cut `group` so: none where it does not work row by row, or its rows are too long."""
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
    lanes = target.threads
    while lanes >= 1:
        vector = _vector(found, lanes)
        method = HoldRows(found.listed.index(anchor.out.name), lanes, vector, *found.names)
        if even(found, method, target):
            method = msgspec.structs.replace(method, moments=pairs)
        rounds = -(-tile // (target.threads // lanes))
        if _words(found, method, rounds) <= MOST_WORDS:
            scratch = scratch_bytes(found, target)
            step = Step(found.listed, tuple(dims), method, scratch_bytes=scratch)
            seconds = _seconds(found, method, tile, target)
            yield Draft(group, grid if found.rows else (1,), (step,), {}, scratch, seconds)
        lanes //= 2


def scratch_bytes(found: Rowwise, target: Target) -> int:
    """A part of every sum for each warp."""
    sums = sum(bool(s.reduce) for s in found.order)
    return sums * target.threads // target.warp * PART


def turns(found: Rowwise, method: HoldRows) -> int:
    """Vectors that a lane takes of a row."""
    return -(-math.prod(found.span) // (method.vector * method.lanes))


def last_lanes(found: Rowwise, method: HoldRows) -> int:
    """Lanes that have a vector in the last turn."""
    vectors = math.prod(found.span) // method.vector
    return vectors - (turns(found, method) - 1) * method.lanes


def even(found: Rowwise, method: HoldRows, target: Target) -> bool:
    """Whether the lanes of a warp have equally much of a row."""
    return last_lanes(found, method) % min(target.warp, method.lanes) == 0


def far_loads(found: Rowwise) -> tuple[Load, ...]:
    """What each element of a row reads that the step does not make, and finds without looking anything up: each once, at the
    anchor's axes."""
    own = {s.out.name for s in found.order}
    out = dict[Load, None]()
    for s in filter(found.along, found.order):
        axes = zip((*s.axes[: found.rows], *found.along(s)), found.anchor.axes, strict=True)
        point: dict[str, Expr] = {a.name: b for a, b in axes}
        for x in loads_of(s):
            if x.tensor.name not in own and not any(loads(i) for i in x.index):
                out[Load(x.tensor, tuple(substitute(i, point) for i in x.index))] = None
    return tuple(out)


def _of_row(x: Load, found: Rowwise) -> bool:
    """Whether `x`, one of `far_loads`, is not the same for all rows."""
    rows = frozenset(found.anchor.axes[: found.rows])
    return any(rows & axes_of(i) for i in x.index)


def _vector(found: Rowwise, lanes: int) -> int:
    """As few turns with narrower vectors where lanes would stand idle."""
    vector = math.gcd(VECTOR, found.span[-1])
    while vector > 1 and 2 * math.prod(found.span) // vector <= lanes:
        vector //= 2
    return vector


def _words(found: Rowwise, method: HoldRows, rounds: int) -> int:
    """Registers of a thread. What is of the row is there twice in several rounds: this one's and the next one's."""
    elements = turns(found, method) * method.vector
    read = sum(
        -(-elements * x.dtype.itemsize // 4) * (2 if rounds > 1 and _of_row(x, found) else 1)
        for x in far_loads(found)
    )
    size = max(s.out.dtype.compute.itemsize for s in found.order if found.wide(s)) // 4
    held = 2 * elements * max(1, size)  # a wide value, and the one made of it
    return read + held


def _seconds(found: Rowwise, method: HoldRows, tile: int, target: Target) -> float:
    """A task: its groups of lanes take their rows round after round, and ask for the next ones meanwhile."""
    groups = target.threads // method.lanes
    sums = sum(bool(s.reduce) for s in found.order) - len(method.moments)
    transcendental = target.model.common.transcendental
    each = sum(cost.operations(s, transcendental) for s in found.order if found.along(s))
    rate = target.flops["fma"] / 2 / target.workers / target.threads
    work = each * turns(found, method) * method.vector / rate
    model = fitted(target.model.rowwise)
    met = sums * (model.reduction if method.lanes > target.warp else model.reduction / 2)
    every = far_loads(found)
    own = [x for x in every if _of_row(x, found)]
    first = target.latency_seconds * (1 + met)
    first += _moved(every, found, min(tile, groups), target) + work
    waits = target.latency_seconds * (model.chain + met)
    further = max(_moved(own, found, groups, target) + work, waits)
    return first + (-(-tile // groups) - 1) * further


def _moved(read: Iterable[Load], found: Rowwise, rows: int, target: Target) -> float:
    """Seconds in which `read` comes for `rows` rows."""
    nbytes = sum(x.dtype.itemsize for x in read) * math.prod(found.span)
    return nbytes * rows / target.worker_bandwidth
