"""How long a task takes: bytes over bandwidth, operations over rate, a latency for each dependent step.

A model to rank by (Roller), scored by the memory level that each operand comes from (Welder); not a prediction.
"""

import functools
import math
from collections.abc import Iterator

from monotile.analysis.reuse import footprint, run_bytes
from monotile.analysis.windows import sliding
from monotile.ir.expr import Axis, Binary, Expr, Load, Unary, loads, walk
from monotile.ir.program import Compute, Scatter, value_of
from monotile.plan.nodes import Map, Method, Reduce
from monotile.targets.model import fitted
from monotile.targets.target import Target

SECTOR = 32  # bytes that memory gives at least
LINE = 128  # bytes that one request brings where neighbours are asked for together
WIDE = 8  # neighbours that `Reduction.vector` is the cost of
_PLAIN = frozenset({"neg", "abs", "not", "isnan", "isinf", "floor", "ceil", "trunc", "round"})

Extents = dict[str, int]  # of every axis within one task


@functools.lru_cache(maxsize=4096)
def operations(s: Compute | Scatter, transcendental: float) -> float:
    """Arithmetic operations an element costs, index arithmetic left out. transcendental: what one counts for."""
    return 1.0 + sum(transcendental if costly else 1.0 for costly, _ in arithmetic(s))


def arithmetic(s: Compute | Scatter) -> Iterator[tuple[bool, Expr]]:
    """The operations of an element, and whether each is costly."""
    for node in walk(value_of(s)):
        match node:
            case Unary(op):
                yield op not in _PLAIN, node
            case Binary(op) if node.a.dtype.is_float:
                yield op in ("pow", "div", "atan2", "hypot", "fmod"), node
            case _:
                pass


def following(step: tuple[Compute | Scatter, ...], target: Target) -> float:
    """Operations that follow an element of a step's first statement."""
    return sum(operations(s, target.model.common.transcendental) for s in step[1:])


def product(extents: Extents, axes: tuple[Axis, ...]) -> int:
    total = 1
    for axis in axes:
        total *= extents[axis.name]
    return total


def simple_seconds(
    s: Compute | Scatter,
    extents: Extents,
    method: Method,
    own: frozenset[str],
    after: float,
    target: Target,
) -> float:
    """One task of a Map, Reduce or Serial step.

    own: tensors that the stage itself holds on chip. after: operations that follow each element.
    """
    model = target.model.common
    vector = access_width(method)
    outputs = product(extents, s.axes)
    points = outputs * product(extents, s.reduce if isinstance(s, Compute) else ())
    bodies = (s.body,) if isinstance(s, Compute) else (*s.index, s.value)
    near = far = asked = 0.0
    for body in bodies:
        for x in _distinct_loads(body):
            if x.tensor.name in own:
                near += footprint(x, extents)
            else:
                far += footprint(x, extents) / _far_use(x, extents, vector, target)
    requests: list[float] = []
    if target.has.coalescing:
        warp = _warp_extents(s, extents, method, target)
        found = (x for body in bodies for x in _distinct_loads(body))
        requests = [1.0 if x.tensor.name in own else _scattered(x, warp, vector, target) for x in found]  # fmt: skip
        asked = model.request * sum(requests) / vector
        if isinstance(s, Compute) and s.out.name not in own:  # stores cost where they are scattered
            out = Load(s.out, s.axes)
            far += footprint(out, extents) * (max(1.0, SECTOR / run_bytes(out, extents)) - 1)
            asked += model.request * (_scattered(out, warp, vector, target) - 1) / vector
    if requests and isinstance(s, Compute) and isinstance(method, Reduce) and method.lanes == 1:
        each = sum(requests) / len(requests)
        spent = each_thread_seconds(s, method, outputs, after, target, each)
        moved = (far + near / model.chip_speedup) / target.worker_bandwidth
        return target.latency_seconds + max(moved, spent)
    busy = min(1.0, points / target.threads)
    rate = target.flops["fma"] / 2 / target.workers * max(busy, 1 / target.threads)
    moved = (far + near / model.chip_speedup) / target.worker_bandwidth
    work = (points * (operations(s, model.transcendental) + asked) + outputs * after) / rate
    waits = 1 + model.turn * (_turns(s, method, outputs, target) - 1 if far else 0)
    return target.latency_seconds * waits + max(moved, work)


def each_thread_seconds(
    s: Compute, method: Reduce, outputs: float, after: float, target: Target, requests: float = 1.0
) -> float:
    """What a worker takes for `outputs` outputs of which every thread makes some by itself. after: operations that follow one of
    them. requests: how many times those of neighbours a warp's are."""
    model = fitted(target.model.reduction)
    found, inner = sliding(s), s.reduce[method.order[-1]].extent
    rows = math.prod(r.extent for r in s.reduce) / inner
    vectors = inner * len(_distinct_loads(s.body)) / method.vector
    if method.windows > 1 and found is not None:
        vectors = found.reads(method.windows, inner) + inner
    wide = max(method.outputs, method.vector) / WIDE
    here = method.windows * method.outputs
    vector = model.vector * (model.narrow + (1 - model.narrow) * wide)
    row = model.row + vector * vectors * requests + model.term * inner * here
    turns = math.ceil(outputs / (target.threads * here))
    return target.latency_seconds * turns * (rows * row + model.finish * here * after)


def access_width(method: Method) -> int:
    """Neighbours that a thread takes at once."""
    match method:
        case Reduce(outputs=outputs) if outputs > 1:
            return outputs
        case Map() | Reduce():
            return method.vector
        case _:
            return 1


def _turns(s: Compute | Scatter, method: Method, outputs: float, target: Target) -> float:
    """How often a thread waits for what it reads: once for each element of a map, for as many rows of columns as it asks for together."""
    vector = access_width(method)
    match method:
        case Map() if target.has.lockstep:
            return -(-outputs // (target.threads * vector))
        case Reduce(by_columns=True) if isinstance(s, Compute):
            rows = math.prod(r.extent for r in s.reduce)
            rounds = math.ceil(outputs * method.lanes / (target.threads * vector))
            return rounds * math.ceil(rows / (method.lanes * fitted(target.model.reduction).rows))
        case _:
            return 1


def _warp_extents(
    s: Compute | Scatter, extents: Extents, method: Method, target: Target
) -> Extents:
    """Of what the threads of a warp take at once."""
    across, along = target.warp * access_width(method), 1
    if isinstance(method, Reduce) and method.by_columns:
        columns = target.threads // method.lanes
        across, along = columns * method.outputs, max(1, target.warp // columns)
    elif isinstance(method, Reduce) and method.outputs == 1:
        lanes = min(method.lanes, target.warp)
        across, along = target.warp // lanes, lanes * method.vector
    reduce = s.reduce if isinstance(s, Compute) else ()
    if isinstance(method, Reduce) and method.order:
        reduce = tuple(reduce[p] for p in method.order)
    out: Extents = {}
    for axes, count in ((s.axes, across), (reduce, along)):
        for axis in reversed(axes):
            out[axis.name] = max(1, min(extents[axis.name], count))
            count = -(-count // out[axis.name])
    return out


def _scattered(x: Load, warp: Extents, vector: int, target: Target) -> float:
    """How many times the requests of neighbours a warp's are: each line that it touches is looked up by itself."""
    size = x.tensor.dtype.itemsize
    lines = footprint(x, warp) / min(run_bytes(x, warp), LINE)
    return max(1.0, lines / max(1.0, target.warp * vector * size / LINE))


def _far_use(x: Load, extents: Extents, vector: int, target: Target) -> float:
    """The part of the bandwidth that a task's accesses of `vector` elements reach: narrow ones are too few in flight, and memory gives
    whole sectors."""
    if not target.has.coalescing:
        return 1.0
    width = vector * x.tensor.dtype.itemsize
    return min(
        1.0,
        (width / target.vector_bytes) ** target.model.common.narrow,
        run_bytes(x, extents) / SECTOR,
    )


@functools.lru_cache(maxsize=4096)
def _distinct_loads(body: Expr) -> tuple[Load, ...]:
    return tuple(dict.fromkeys(loads(body)))
