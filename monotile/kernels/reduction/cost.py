"""Cost model of a reduction: by lanes, by columns, or by single threads."""

import functools
import math

from monotile.analysis.affine import offset
from monotile.analysis.ends import segment_ends, share_of_terms
from monotile.analysis.windows import sliding
from monotile.ir.expr import Axis, children, loads, walk
from monotile.ir.program import Compute
from monotile.kernels.common.cost import Access, Extents, distinct_loads, product
from monotile.kernels.reduction.method import Reduce
from monotile.targets.model import RegisterTiles, fitted
from monotile.targets.target import Target

WIDE = 8  # neighbours that `Reduction.vector` is the cost of
DIVISION = 10  # operations of a quotient and a remainder
SKIPPED = 4  # elements that a load may skip along a vector
FEW = 64  # terms, up to which vectors of outputs are as good as those of terms


@functools.lru_cache(maxsize=4096)
def _on_cpu(s: Compute, inner: Axis, tiles: RegisterTiles) -> tuple[float, float]:
    """Operations per term and per output besides the arithmetic: gathers, and the horizontal combination of vector lanes. inner: the axis
    along which terms are contiguous. Whether vectors run along it or along the outputs is estimated as in `simd_of`, which knows the memory
    layout."""
    terms, outputs = _vectors(s, inner), _vectors(s, s.axes[-1]) if s.axes else 1
    across = 1 < outputs and terms <= outputs and terms < FEW and segment_ends(s) is None
    axis = s.axes[-1] if across else inner
    apart = sum(abs(offset(x).coefficient(axis)) > 1 for x in distinct_loads(s.body))
    return tiles.gather * apart, 0.0 if across else tiles.together


def _vectors(s: Compute, axis: Axis) -> int:
    """The benefit of vectors along `axis`: its extent, or 1 if a load skips too many elements."""
    steps = [abs(offset(x).coefficient(axis)) for x in loads(s.body)]
    return 1 if max(steps, default=0) > SKIPPED else axis.extent


def access(s: Compute, method: Reduce, extents: Extents, after: float, target: Target) -> Access:
    """How threads access a task with these extents. after: operations that follow an output."""
    outputs = product(extents, s.axes)
    width = method.outputs if method.outputs > 1 else method.vector
    if method.by_columns:
        columns = target.threads // method.lanes
        rows = math.prod(r.extent for r in s.reduce) * share_of_terms(s)
        rounds = math.ceil(outputs * method.lanes / (target.threads * width))
        turns = rounds * math.ceil(rows / (method.lanes * fitted(target.model.reduction).rows))
        along = max(1, target.warp // columns)
        return Access(width, columns * method.outputs, along, method.order, turns)
    alone = None
    if method.lanes == 1:
        alone = functools.partial(each_thread_seconds, s, method, outputs, after, target)
    if method.outputs > 1:
        return Access(width, target.warp * width, 1, method.order, 1, alone)
    lanes, turns = min(method.lanes, target.warp), 1
    if method.lanes > 1:
        terms = math.prod(r.extent for r in s.reduce) * share_of_terms(s)
        vectors = terms / (method.lanes * method.vector)
        turns = math.ceil(vectors / fitted(target.model.reduction).loads)
    across, along = target.warp // lanes, lanes * method.vector
    beside = _beside(s, method, target)
    return Access(width, across, along, method.order, turns, alone, *beside)


def _beside(s: Compute, method: Reduce, target: Target) -> tuple[float, float]:
    """Operations per term and per output besides the arithmetic."""
    tiles = target.model.register_tiles
    if tiles is not None:
        return _on_cpu(s, s.reduce[method.order[-1]], tiles)
    return _places(s) / method.vector if method.lanes > 1 else 0.0, 0.0


@functools.lru_cache(maxsize=4096)
def _places(s: Compute) -> float:
    """About how many operations a lane needs per vector for its reduce indices, and for the indices and conditions made of them."""
    found = {x for x in walk(s.body) if children(x) and not x.dtype.is_float}
    return DIVISION * (len(s.reduce) - 1) + len(found) if len(s.reduce) > 1 else 0.0


def each_thread_seconds(
    s: Compute, method: Reduce, outputs: float, after: float, target: Target, requests: float = 1.0
) -> float:
    """Seconds of a worker for `outputs` outputs, each computed by a single thread. after: operations that follow an output. requests:
    memory requests of a warp, as a multiple of those for contiguous outputs."""
    model = fitted(target.model.reduction)
    found, inner = sliding(s), s.reduce[method.order[-1]].extent
    rows = math.prod(r.extent for r in s.reduce) / inner * share_of_terms(s)
    vectors = inner * len(distinct_loads(s.body)) / method.vector
    if method.windows > 1 and found is not None:
        vectors = found.reads(method.windows, inner) + inner
    wide = max(method.outputs, method.vector) / WIDE
    here = method.windows * method.outputs
    vector = model.vector * (model.narrow + (1 - model.narrow) * wide)
    row = model.row + vector * vectors * requests + model.term * inner * here
    if method.windows > 1:
        slid = s.axes[-2].extent
        outputs *= -(-slid // method.windows) * method.windows / slid
    turns = math.ceil(outputs / (target.threads * here))
    return target.latency_seconds * turns * (rows * row + model.finish * here * after)
