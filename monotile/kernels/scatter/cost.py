"""How long writes that may meet take: one after the other, or as lists of each position's terms."""

import math

from monotile.ir.expr import Expr, Load, children, loads
from monotile.ir.program import Scatter, expressions
from monotile.kernels.common.cost import operations
from monotile.kernels.scatter.method import Listed
from monotile.kernels.scatter.roles import Roles
from monotile.targets.target import Target

AHEAD = 12  # elements that a thread reads at once before it writes them in order
UPDATE = (
    0.3  # of a latency, until what was just written can be read again: the next one may add to it
)
SCAN_OPERATIONS = 20  # an index: its position, whether it is the task's, its place in the list
TERM_OPERATIONS = 8  # an element of a term: its address and its sum
BLOCK_WAITS = 12  # barriers of the block, and as many looks at the lists, that lists take
BLOCK_WAIT = 0.12  # of a latency, each


def serial_seconds(s: Scatter, walked: int, turns: int, target: Target) -> float:
    """A thread that writes `walked` elements in order, `turns` times."""
    each = target.latency_seconds * (depth(s) / AHEAD + UPDATE)
    return turns * walked * each


def listed_seconds(s: Scatter, roles: Roles, m: Listed, features: int, target: Target) -> float:
    """One task, where terms are spread evenly. features: its own."""
    count, latency = roles.count(s), target.latency_seconds
    rate = target.flops["fma"] / 2 / target.workers
    bandwidth = min(target.worker_bandwidth, target.l2_bandwidth / target.workers)
    index = {x for d in roles.scattered for x in loads(s.index[d])}
    index_bytes = count * sum(_line(s, roles, x) for x in index)
    rounds = -(-count // (target.threads * m.loads))
    deep = max((_depth(s.index[d]) for d in roles.scattered), default=0)
    operated = count * SCAN_OPERATIONS / rate
    scan = max(rounds * latency * deep + operated, index_bytes / bandwidth)
    mine = max(1.0, count * m.rows / max(m.rows, roles.positions(s)))
    full = target.threads // target.warp * m.capacity
    lists = max(1, math.ceil(mine / (full / 2))) * BLOCK_WAITS * BLOCK_WAIT * latency
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


def depth(s: Scatter) -> int:
    """Loads of an element that wait for one another."""
    return max((_depth(e) for e in expressions(s)), default=0)


def _depth(e: Expr) -> int:
    """Of loads whose addresses others decide."""
    parts = e.index if isinstance(e, Load) else children(e)
    return isinstance(e, Load) + max((_depth(x) for x in parts), default=0)


def _line(s: Scatter, roles: Roles, x: Load) -> int:
    """Bytes that an index costs where neighbours are read: a whole sector where others' lie between."""
    last = {s.axes[p] for p in roles.terms[-1:]}
    near = bool(x.index) and x.index[-1] in last
    return x.dtype.itemsize if near else 32
