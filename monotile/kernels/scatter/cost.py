"""Cost model of writes that may collide: serial, or as lists of the terms of each position."""

import math
from collections.abc import Sequence, Set

from monotile.analysis.row_lists import RowLists
from monotile.ir.expr import Axis, Expr, Load, children, loads
from monotile.ir.program import Scatter, expressions
from monotile.kernels.common.cost import operations
from monotile.kernels.scatter.method import Listed, ListRows
from monotile.kernels.scatter.roles import Roles
from monotile.targets.target import Target

AHEAD = 12  # elements whose operands a thread loads together before it writes them in order
UPDATE = 0.3  # of a latency, until a written value can be read again: the next write may add to it
SCAN_OPERATIONS = 20  # an index: its position, whether it is the task's, its place in the list
TERM_OPERATIONS = 8  # an element of a term: its address, and adding it
SORT_OPERATIONS = 60  # a term: counted, and put in its place
COUNT_OPERATIONS = 6  # a row's terms of a warp: the prefix sum of their number
PLACE_LATENCIES = 8  # storing a term: the binary search for its row, and the epilogue with its look-ups and checks
BLOCK_WAITS = 12  # block barriers, each with an access to the lists, of building lists
BLOCK_WAIT = 0.12  # of a latency, each


def serial_seconds(s: Scatter, walked: int, turns: int, target: Target) -> float:
    """Seconds of a thread that writes `walked` elements in order, `turns` times."""
    each = target.latency_seconds * (depth(s) / AHEAD + UPDATE)
    return turns * walked * each


def listed_seconds(s: Scatter, roles: Roles, m: Listed, features: int, target: Target) -> float:
    """Seconds of one task, if terms are spread evenly. features: of the task."""
    count, latency = roles.count(s), target.latency_seconds
    rate, bandwidth = _rates(target)
    last = {s.axes[p] for p in roles.terms[-1:]}
    scan = _scan_seconds([s.index[d] for d in roles.scattered], last, count, m.loads, target)
    mine = max(1.0, count * m.rows / max(m.rows, roles.positions(s)))
    lists = _lists_seconds(mine, m.capacity, target)
    at_once = target.threads // m.lanes
    turns = -(-m.rows // at_once) * -(-features // (m.lanes * m.each))
    steps = math.ceil(max(1.0, mine / m.rows) / m.terms)
    waits = turns * (steps * _depth(s.value) + 1) * latency
    value = set(loads(s.value))
    moved = mine * features * sum(x.dtype.itemsize for x in value)
    moved += 2 * m.rows * features * s.out.dtype.itemsize
    work = mine * features * (operations(s, target.model.common.transcendental) + TERM_OPERATIONS)
    busy = min(1.0, m.rows * m.lanes / target.threads)
    return latency + scan + lists + max(waits, moved / bandwidth, work / (rate * busy))


def rows_seconds(found: RowLists, m: ListRows, target: Target) -> float:
    """Seconds of one task that makes lists of its rows, for which it reads all indices twice."""
    scan = _scan_seconds([found.index], {found.term}, found.terms, m.loads, target)
    mine = max(1.0, found.terms * m.rows / max(m.rows, found.rows))
    each = scan + _lists_seconds(mine, m.capacity, target)
    rate, _ = _rates(target)
    counts = m.rows * target.threads // target.warp
    each += (mine * SORT_OPERATIONS + counts * COUNT_OPERATIONS) / rate
    places = math.ceil(mine / target.threads) * PLACE_LATENCIES * target.latency_seconds
    return target.latency_seconds + 2 * each + places


def _rates(target: Target) -> tuple[float, float]:
    """A worker's operations per second, and its bytes per second from the last-level cache."""
    bandwidth = min(target.worker_bandwidth, target.l2_bandwidth / target.workers)
    return target.flops["fma"] / 2 / target.workers, bandwidth


def _scan_seconds(
    index: Sequence[Expr], near: Set[Axis], count: int, at_once: int, target: Target
) -> float:
    """Seconds to read `count` indices, which are contiguous along the axes `near`."""
    rate, bandwidth = _rates(target)
    nbytes = count * sum(_line(near, x) for x in {x for i in index for x in loads(i)})
    rounds = -(-count // (target.threads * at_once))
    deep = max((_depth(i) for i in index), default=0)
    operated = count * SCAN_OPERATIONS / rate
    return max(rounds * target.latency_seconds * deep + operated, nbytes / bandwidth)


def _lists_seconds(terms: float, capacity: int, target: Target) -> float:
    """Seconds to sort `terms` terms of the task by position."""
    full = target.threads // target.warp * capacity
    rounds = max(1, math.ceil(terms / (full / 2)))
    return rounds * BLOCK_WAITS * BLOCK_WAIT * target.latency_seconds


def depth(s: Scatter) -> int:
    """The length of the chain of dependent loads of an element."""
    return max((_depth(e) for e in expressions(s)), default=0)


def _depth(e: Expr) -> int:
    """The length of the chain of dependent loads in `e`."""
    parts = e.index if isinstance(e, Load) else children(e)
    return isinstance(e, Load) + max((_depth(x) for x in parts), default=0)


def _line(near: Set[Axis], x: Load) -> int:
    """Bytes of memory traffic per index: a whole sector where indices are not contiguous."""
    return x.dtype.itemsize if x.index and x.index[-1] in near else 32
