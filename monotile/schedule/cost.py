"""How long a task takes: bytes over bandwidth, operations over rate, a latency for each dependent step.

A model to rank by (Roller), scored by the memory level that each operand comes from (Welder); not a prediction.
"""

from monotile.ir.expr import Axis, Binary, Load, Unary, axes_of, loads, walk
from monotile.ir.program import Compute, Scatter
from monotile.schedule.plan import Contract
from monotile.target.target import Target

COSTLY = 12.0  # operations that a transcendental function counts for
EFFICIENCY = {"mma.m16n8k16": 0.45, "fma": 0.55, "dot": 0.6, "outer": 0.6}
SHARED_SPEEDUP = 4.0  # on-chip memory against the path from L2 into one worker
BLOCK_BARRIER = 0.05  # of a grid barrier
_PLAIN = frozenset({"neg", "abs", "not", "isnan", "isinf", "floor", "ceil", "trunc", "round"})

Extents = dict[str, int]  # of every axis within one task


def footprint(x: Load, extents: Extents) -> int:
    """Bytes of `x.tensor` that a task touches (an upper bound: distinct index tuples)."""
    count = 1
    for axis in frozenset().union(*(axes_of(i) for i in x.index)) if x.index else ():
        count *= extents.get(axis.name, 1)
    return min(count, x.tensor.size) * x.tensor.dtype.itemsize


def operations(s: Compute | Scatter) -> float:
    """Arithmetic operations an element costs, index arithmetic left out."""
    body = s.body if isinstance(s, Compute) else s.value
    total = 1.0
    for node in walk(body):
        match node:
            case Unary(op):
                total += 1.0 if op in _PLAIN else COSTLY
            case Binary(op) if node.a.dtype.is_float:
                total += COSTLY if op in ("pow", "div", "atan2", "hypot", "fmod") else 1.0
            case _:
                pass
    return total


def product(extents: Extents, axes: tuple[Axis, ...]) -> int:
    total = 1
    for axis in axes:
        total *= extents[axis.name]
    return total


def simple_seconds(s: Compute | Scatter, extents: Extents, own: frozenset[str], target: Target) -> float:
    """One task of a Map, Reduce or Serial step. own: tensors that the stage itself holds on chip."""
    reduce = s.reduce if isinstance(s, Compute) else ()
    points = product(extents, s.axes) * product(extents, reduce)
    bodies = (s.body,) if isinstance(s, Compute) else (*s.index, s.value)
    near = far = 0
    for body in bodies:
        for x in set(loads(body)):
            if x.tensor.name in own:
                near += footprint(x, extents)
            else:
                far += footprint(x, extents)
    busy = min(1.0, points / target.threads)
    rate = target.flops["fma"] / 2 / target.workers * max(busy, 1 / target.threads)
    moved = (far + near / SHARED_SPEEDUP) / target.worker_bandwidth
    return target.latency_seconds + max(moved, points * operations(s) / rate)


def contract_seconds(c: Contract, m: int, n: int, k: int, size: int, target: Target) -> float:
    """One task's m x n x k product, m and n rounded up to whole blocks.

    size: bytes of an operand's element.
    """
    blocks = -(-m // c.block_m) * -(-n // c.block_n)
    rate = target.flops["mma16" if c.instruction == "mma.m16n8k16" else "fma"] / target.workers
    work = 2 * c.block_m * c.block_n * k / (rate * EFFICIENCY[c.instruction])
    if target.kind == "cpu":  # register tiles: the operands of a task stay in the caches between blocks
        moved = (m + n) * k * size / target.worker_bandwidth
        return target.latency_seconds + max(moved, blocks * work)
    moved = (min(c.block_m, m) + min(c.block_n, n)) * k * size / target.worker_bandwidth
    partial = 2 * c.slices * c.block_m * c.block_n * 4 / (SHARED_SPEEDUP * target.worker_bandwidth)
    steps = -(-k // (c.block_k * c.slices))
    fill = target.latency_seconds * (1 + 0.1 * steps / max(c.depth - 1, 1))
    return blocks * (fill + max(moved, work) + partial)
