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
from monotile.targets.target import Target

COSTLY = 12.0  # operations that a transcendental function counts for
LOAD_COST = 4.0  # operations that a request counts for: 32 lanes ask while 128 compute
SECTOR = 32  # bytes that memory gives at least
LINE = 128  # bytes that one request brings where neighbours are asked for together
TURN = 0.4  # of the latency: what a thread waits for in each further turn of a map
# Outputs that a thread makes by itself, in latencies, for vectors of WIDE (fitted by hand to 3 x 3 and 7 x 7 depthwise, 1 to 7 windows, H100; 2 to 20 % off):
ROUND = 0.075  # a row of a window
VECTOR = 0.037  # what is loaded of it at once
TERM = 0.0021  # a product
FINISH = 0.0033  # an operation that follows
WIDE = 8
ROWS = 24  # of a matrix that a thread asks for at once, vectors of 16 bytes
SHARED_SPEEDUP = 4.0  # on-chip memory against the path from L2 into one worker
KEPT = 0.25  # of the last-level cache: what is larger is read from memory again
BLOCK_BARRIER = 0.05  # of a grid barrier
_PLAIN = frozenset({"neg", "abs", "not", "isnan", "isinf", "floor", "ceil", "trunc", "round"})

Extents = dict[str, int]  # of every axis within one task


@functools.lru_cache(maxsize=4096)
def operations(s: Compute | Scatter) -> float:
    """Arithmetic operations an element costs, index arithmetic left out."""
    return 1.0 + sum(COSTLY if costly else 1.0 for costly, _ in arithmetic(s))


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


def following(step: tuple[Compute | Scatter, ...]) -> float:
    """Operations that follow an element of a step's first statement."""
    return sum(operations(s) for s in step[1:])


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
        asked = LOAD_COST * sum(requests) / vector
        if isinstance(s, Compute) and s.out.name not in own:  # stores cost where they are scattered
            out = Load(s.out, s.axes)
            far += footprint(out, extents) * (max(1.0, SECTOR / run_bytes(out, extents)) - 1)
            asked += LOAD_COST * (_scattered(out, warp, vector, target) - 1) / vector
    if requests and isinstance(s, Compute) and isinstance(method, Reduce) and method.lanes == 1:
        each = sum(requests) / len(requests)
        spent = each_thread_seconds(s, method, outputs, after, target, each)
        moved = (far + near / SHARED_SPEEDUP) / target.worker_bandwidth
        return target.latency_seconds + max(moved, spent)
    busy = min(1.0, points / target.threads)
    rate = target.flops["fma"] / 2 / target.workers * max(busy, 1 / target.threads)
    moved = (far + near / SHARED_SPEEDUP) / target.worker_bandwidth
    work = (points * (operations(s) + asked) + outputs * after) / rate
    waits = 1 + TURN * (_turns(s, method, outputs, target) - 1 if far else 0)
    return target.latency_seconds * waits + max(moved, work)


def each_thread_seconds(
    s: Compute, method: Reduce, outputs: float, after: float, target: Target, requests: float = 1.0
) -> float:
    """What a worker takes for `outputs` outputs of which every thread makes some by itself. after: operations that follow one of
    them. requests: how many times those of neighbours a warp's are."""
    found, inner = sliding(s), s.reduce[method.order[-1]].extent
    rows = math.prod(r.extent for r in s.reduce) / inner
    vectors = inner * len(_distinct_loads(s.body)) / method.vector
    if method.windows > 1 and found is not None:
        vectors = found.reads(method.windows, inner) + inner
    wide = max(method.outputs, method.vector) / WIDE
    here = method.windows * method.outputs
    row = ROUND + VECTOR * (0.4 + 0.6 * wide) * vectors * requests + TERM * inner * here
    turns = math.ceil(outputs / (target.threads * here))
    return target.latency_seconds * turns * (rows * row + FINISH * here * after)


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
    """How often a thread waits for what it reads: once for each element of a map, for each ROWS rows of columns."""
    vector = access_width(method)
    match method:
        case Map() if target.has.lockstep:
            return -(-outputs // (target.threads * vector))
        case Reduce(by_columns=True) if isinstance(s, Compute):
            rows = math.prod(r.extent for r in s.reduce)
            rounds = math.ceil(outputs * method.lanes / (target.threads * vector))
            return rounds * math.ceil(rows / (method.lanes * ROWS))
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
    return min(1.0, (width / target.vector_bytes) ** 0.7, run_bytes(x, extents) / SECTOR)


@functools.lru_cache(maxsize=4096)
def _distinct_loads(body: Expr) -> tuple[Load, ...]:
    return tuple(dict.fromkeys(loads(body)))
