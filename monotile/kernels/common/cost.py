"""Cost model of a task: bytes over bandwidth, operations over rate, a latency for each dependent step.

It is used to rank candidates (Roller), by the memory level that each operand comes from (Welder); it is not a prediction.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from monotile.analysis.ends import segment_ends, share_of_terms
from monotile.analysis.reuse import footprint, run_bytes
from monotile.ir.expr import OF_BITS, Axis, Binary, Expr, Load, Unary, loads, walk
from monotile.ir.program import Compute, Scatter, expressions, value_of
from monotile.targets.target import Target

SECTOR = 32  # bytes of the smallest memory transaction
ROUNDING = 1 + 1e-9  # by which a bound may exceed what it bounds, due to floating-point rounding
LINE = 128  # bytes of one request when neighbours are loaded together
_PLAIN = frozenset(
    {"neg", "abs", "not", "isnan", "isinf", "floor", "ceil", "trunc", "round", "to_tf32", "bits"}
    | OF_BITS.keys()
)

Extents = dict[str, int]  # of every axis within one task


@functools.lru_cache(maxsize=4096)
def operations(s: Compute | Scatter, transcendental: float) -> float:
    """Arithmetic operations of an element, without index arithmetic. transcendental: what one counts for."""
    return 1.0 + sum(transcendental if costly else 1.0 for costly, _ in arithmetic(s))


def arithmetic(s: Compute | Scatter) -> Iterator[tuple[bool, Expr]]:
    """The operations of an element, and whether each is costly."""
    for node in walk(value_of(s)):
        match node:
            case Unary("tf32" | "is_tf32" | "ascends"):
                pass
            case Unary(op):
                yield op not in _PLAIN, node
            case Binary(op) if node.a.dtype.is_float:
                yield op in ("pow", "div", "atan2", "hypot", "fmod"), node
            case _:
                pass


def following(step: tuple[Compute | Scatter, ...], target: Target) -> float:
    """Operations of the epilogue, for each element of a step's first statement."""
    return sum(operations(s, target.model.common.transcendental) for s in step[1:])


def product(extents: Extents, axes: tuple[Axis, ...]) -> int:
    total = 1
    for axis in axes:
        total *= extents[axis.name]
    return total


@dataclass(frozen=True, slots=True)
class Access:
    """How the threads of a worker access a step's elements.

    width: neighbours that a thread takes at once. across: outputs that a warp takes at once. along: points of the reduction, likewise.
    order: in which the reduce axes are flattened. turns: how often a thread waits for loads from memory.
    alone: seconds of the step where every thread computes outputs by itself, given by how much its loads exceed those of neighbours.
    of_point, of_output: further operations of each point, and of each output.
    """

    width: int
    across: int
    along: int = 1
    order: tuple[int, ...] = ()
    turns: float = 1
    alone: Callable[[float], float] | None = None
    of_point: float = 0.0
    of_output: float = 0.0


def simple_seconds(
    s: Compute | Scatter,
    extents: Extents,
    access: Access,
    own: frozenset[str],
    after: float,
    target: Target,
) -> float:
    """Seconds of one task of a step without a pipeline of operands.

    own: tensors that the stage itself holds on chip. after: operations that follow each element.
    """
    vector, model = access.width, target.model.common
    outputs = product(extents, s.axes)
    points: float = outputs
    if isinstance(s, Compute):
        points *= product(extents, s.reduce) * share_of_terms(s)
        extents = _with_own_terms(s, extents)
    bodies = expressions(s)
    near = far = asked = 0.0
    for body in bodies:
        for x in distinct_loads(body):
            if x.tensor.name in own:
                near += footprint(x, extents)
            else:
                far += footprint(x, extents) / _far_use(s, x, extents, vector, target)
    requests: list[float] = []
    if target.has.coalescing:
        warp = _warp_extents(s, extents, access)
        found = (x for body in bodies for x in distinct_loads(body))
        requests = [1.0 if x.tensor.name in own else _scattered(x, warp, vector, target) for x in found]  # fmt: skip
        asked = model.request * sum(requests) / vector
        if isinstance(s, Compute) and s.out.name not in own:  # stores cost where they are scattered
            out = Load(s.out, s.axes)
            far += footprint(out, extents) * (max(1.0, SECTOR / run_bytes(out, extents)) - 1)
            asked += model.request * (_scattered(out, warp, vector, target) - 1) / vector
    moved = (far + near / model.chip_speedup) / target.worker_bandwidth
    if requests and access.alone is not None:
        spent = access.alone(sum(requests) / len(requests))
        return target.latency_seconds + max(moved, spent)
    busy = min(1.0, points / target.threads)
    rate = target.flops["fma"] / 2 / target.workers * max(busy, 1 / target.threads)
    work = points * (operations(s, model.transcendental) + asked + access.of_point)
    work = (work + outputs * (after + access.of_output)) / rate
    waits = 1 + model.turn * (access.turns - 1 if far else 0)
    return target.latency_seconds * waits + max(moved, work)


def _with_own_terms(s: Compute, extents: Extents) -> Extents:
    """`extents` with the terms that the outputs of a task have together, where each has a part of them."""
    ends, share = segment_ends(s), share_of_terms(s)
    if ends is None or share == 1.0:
        return extents
    (axis,) = s.reduce
    rows = product(extents, tuple(ends.axes))
    return {**extents, axis.name: min(axis.extent, math.ceil(axis.extent * share * rows))}


def chip_seconds(values: int, target: Target) -> float:
    """Seconds of one pass over so many values of 4 bytes, on chip."""
    return values * 4 / (target.model.common.chip_speedup * target.worker_bandwidth)


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _warp_extents(s: Compute | Scatter, extents: Extents, access: Access) -> Extents:
    """Extents of the elements that the threads of a warp take at once."""
    reduce = s.reduce if isinstance(s, Compute) else ()
    if access.order:
        reduce = tuple(reduce[p] for p in access.order)
    out: Extents = {}
    for axes, count in ((s.axes, access.across), (reduce, access.along)):
        for axis in reversed(axes):
            out[axis.name] = max(1, min(extents[axis.name], count))
            count = -(-count // out[axis.name])
    return out


def _scattered(x: Load, warp: Extents, vector: int, target: Target) -> float:
    """The ratio of a warp's memory requests to those for contiguous elements: each line that it touches is a separate request."""
    size = x.tensor.dtype.itemsize
    lines = footprint(x, warp) / min(run_bytes(x, warp), LINE)
    return max(1.0, lines / max(1.0, target.warp * vector * size / LINE))


def _far_use(s: Compute | Scatter, x: Load, extents: Extents, vector: int, target: Target) -> float:
    """The fraction of the bandwidth that a task's accesses of `vector` elements reach: too few narrow ones are in flight, and memory
    transfers whole sectors. A worker that sums by itself waits for each contiguous run."""
    if not target.has.coalescing:
        if (
            not isinstance(s, Compute)
            or not s.reduce
            or footprint(x, extents) <= target.shared_bytes
        ):
            return 1.0
        run = max(run_bytes(x, e) for e in _walked(s, extents))
        return run / (run + target.model.common.gap)
    width = vector * x.tensor.dtype.itemsize
    reached = (width / target.vector_bytes) ** target.model.common.narrow
    return min(1.0, reached, run_bytes(x, extents) / SECTOR)


def _walked(s: Compute, extents: Extents) -> Iterator[Extents]:
    """The elements that a worker that sums by itself takes at a time: the terms of a result, or neighbouring results."""
    yield {a.name: extents[a.name] for a in s.reduce}
    yield {a.name: extents[a.name] for a in s.axes}


@functools.lru_cache(maxsize=4096)
def distinct_loads(body: Expr) -> tuple[Load, ...]:
    """The Loads of `body`, each once, in order."""
    return tuple(dict.fromkeys(loads(body)))
