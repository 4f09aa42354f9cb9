"""Candidates for cutting a product with streamed weights into tasks: a number of rows per worker."""

import math
from collections.abc import Iterator, Sequence

from monotile.analysis.streaming import VECTOR
from monotile.ir.expr import axes_of, loads
from monotile.ir.program import Compute, Scatter
from monotile.kernels.common import cost
from monotile.kernels.draft import Context, Draft
from monotile.kernels.family import RowSite
from monotile.kernels.gemv import columns, tiles
from monotile.kernels.gemv.method import PARTS, Gemv, GemvColumns, GemvMma, Streamed
from monotile.kernels.gemv.problem import Problem, problem
from monotile.kernels.group import Group
from monotile.plan.nodes import Dim, Step
from monotile.targets.model import fitted
from monotile.targets.target import Target

MOST_HELD = 64  # registers of a thread for elements of the vectors
CHUNK = 4096  # bytes of a warp's chunk, about
SLOT = 1 << 14  # bytes of a slot of the ring, about; a few are in flight (`schedule/ring.py`)


def cut(group: Group, context: Context) -> Iterator[Draft]:
    """A draft with one task per worker and an equal number of rows each; none if the group is no such product."""
    anchor, target = group.steps[0][0], context.target
    found = _found(anchor, context)
    if len(group.steps) != 1 or found is None:
        return
    names = tuple(s.out.name for s in group.steps[0])
    vectors = math.prod(anchor.axes[p].extent for p in found.m)
    for apart in _ways_apart(found, anchor):
        dims = [Dim((p,), anchor.axes[p].extent, 1, k) for k, p in enumerate(apart)]
        several = [d.extent for d in dims]
        together = tuple(p for p in found.n if p not in apart)
        rows = math.prod(anchor.axes[p].extent for p in together)
        workers = target.workers // math.prod(several)  # for each position of the axes apart
        method = _method(found, vectors, -(-rows // workers), target) if workers else None
        if method is None or not together:
            continue
        tile = _tile(found, method, rows, workers)
        dims.append(Dim(together, rows, tile, len(apart)))
        if found.m:
            dims.append(Dim(found.m, vectors, vectors, None))
        if not _in_memory(found, method, dims, target):
            continue
        scratch = scratch_of(found, method, tile, vectors, target)
        step = Step(names, tuple(dims), method, scratch_bytes=scratch)
        seconds = _seconds(found, method, (tile, vectors), len(names), target)
        yield Draft(group, (*several, -(-rows // tile)), (step,), {}, scratch, seconds)
        return


def _ways_apart(found: Problem, anchor: Compute | Scatter) -> Iterator[tuple[int, ...]]:
    """The axes of which a task has one position each: those that it must; before them also those whose position is looked up, so that rows
    of whole matrices are neighbours; behind them also all that are not neighbours in memory."""
    looked_up = {a for i in found.matrix.index for x in loads(i) for a in axes_of(x)}
    each = tuple(p for p in found.wide if p in found.apart or anchor.axes[p] in looked_up)
    if not found.across and set(each) > set(found.apart):
        yield each
    yield found.apart
    if found.across and found.wide[:-1] != found.apart:
        yield found.wide[:-1]


def in_rows(site: RowSite, context: Context) -> tuple[Step, float] | None:
    """The product as a step of a task with several steps, with its cost; None if it cannot be, or a worker would have several tasks."""
    anchor, target = site.anchor, context.target
    found = _found(anchor, context)
    if found is None or any(site.lead.values()):
        return None
    tasks = math.prod(-(-anchor.axes[p].extent // site.tiles[k]) for p, k in site.where.items())
    extents = site.extents
    vectors, rows, several = (
        math.prod(extents[anchor.axes[p].name] for p in ps)
        for ps in (found.m, found.n, found.apart)
    )
    method = _method(found, vectors, rows, target)
    if method is None or several > 1 or tasks > target.workers:
        return None
    if not _in_memory(found, method, site.dims, target):
        return None
    scratch = scratch_of(found, method, rows, vectors, target)
    step = Step(site.names, site.dims, method, scratch_bytes=scratch)
    return step, _seconds(found, method, (rows, vectors), len(site.step), target)


def _in_memory(found: Problem, method: Streamed, dims: Sequence[Dim], target: Target) -> bool:
    """Whether a task's columns, where the sum goes across rows, are where the supplier can load them."""
    across = isinstance(method, GemvColumns)
    return not across or columns.in_vectors(found, method, dims, target)


def _tile(found: Problem, method: Streamed, rows: int, workers: int) -> int:
    """Rows of a task, where `workers` divide `rows`; columns if the sum goes across rows."""
    if isinstance(method, GemvColumns):
        return min(rows, columns.of_task(found, method))
    return min(rows, cost.round_up(-(-rows // workers), method.slot_rows))


def _method(found: Problem, vectors: int, rows: int, target: Target) -> Streamed | None:
    """The method for about `rows` rows per task: dot products with vectors in registers; for codes, products of tiles; or sums across rows."""
    if found.across:
        return columns.choose(found, vectors, rows, target)
    if found.codes is not None:
        return tiles.choose(found, vectors, rows, target)
    return choose(found, vectors, rows, target)


def scratch_of(
    found: Problem,
    method: Streamed,
    rows: int,
    vectors: int,
    target: Target,
) -> int:
    """On-chip bytes of a task with `rows` rows, besides the ring."""
    if isinstance(method, GemvColumns):
        return columns.layout(found, method, vectors).nbytes
    if isinstance(method, GemvMma):
        return tiles.layout(found, method, rows, vectors).nbytes
    return scratch_bytes(method, rows, vectors, target)


def choose(found: Problem, vectors: int, rows: int, target: Target) -> Gemv | None:
    """The dot-product method for `rows` rows per task; None if threads cannot hold their part of the vectors. As few warps as possible
    share a row, since their sums have to be combined; more if there are few rows."""
    size = found.matrix.dtype.itemsize
    warps = target.threads // target.warp
    fitting = [
        p
        for p in PARTS
        if p <= warps
        and found.row_bytes % (p * VECTOR) == 0
        and vectors * held(found.along.extent // p, size, target) <= MOST_HELD
        and found.row_bytes // p <= 2 * CHUNK
    ]
    small = [p for p in fitting if found.row_bytes // p <= CHUNK] or fitting[-1:]
    if not small:
        return None
    parts = next((p for p in small if warps // p <= rows), small[-1])
    chunk, at_a_time = found.row_bytes // parts, 1
    while chunk * at_a_time * 2 <= CHUNK and warps // parts * at_a_time * 2 <= rows:
        at_a_time *= 2
    chunk *= at_a_time
    most = min(warps, target.warp // at_a_time * parts)  # each row of a slot is a lane's
    least = parts if at_a_time > 1 else 1  # a slot may have a part of one row
    team = next(t for t in PARTS if t >= least and (t * chunk * 4 >= SLOT * 3 or 2 * t > most))
    return Gemv(parts, at_a_time, found.second, chunk, team, warps // team)


def held(columns: int, size: int, target: Target) -> int:
    """Elements of one vector that a thread holds for `columns` columns, whose weights have `size` bytes."""
    vector = VECTOR // size
    return -(-columns // (target.warp * vector)) * vector


def at_once(method: Gemv, target: Target) -> int:
    """Rows that all warps of a worker process at once."""
    return target.threads // target.warp // method.parts * method.rows


def scratch_bytes(method: Gemv, rows: int, vectors: int, target: Target) -> int:
    """On-chip bytes for a sum of each row, vector and part of the columns."""
    return 4 * cost.round_up(rows, at_once(method, target)) * method.parts * vectors


def _found(anchor: Compute | Scatter, context: Context) -> Problem | None:
    if "tma" not in context.target.instructions or not isinstance(anchor, Compute):
        return None
    return problem(anchor, context.streamed)


def _seconds(
    found: Problem,
    method: Streamed,
    size: tuple[int, int],
    steps: int,
    target: Target,
) -> float:
    """Seconds of a task: latency, streaming the weights, and the epilogue. Weights that are looked up are not loaded ahead: what the
    supplier takes for them adds to the latency of looking up. size: rows and vectors of a task. steps: computes."""
    model, (rows, vectors) = target.model.common, size
    after = (steps - 1) * model.after_plain * rows * vectors
    finish = after / (target.flops["fma"] / 2 / target.workers)
    if isinstance(method, GemvMma):
        nbytes = tiles.bytes_taken(found, method, rows, vectors)
    elif isinstance(method, GemvColumns):
        nbytes = found.along.extent * method.row_bytes
    else:
        nbytes = rows * found.row_bytes
    loads = nbytes / target.worker_bandwidth
    if found.looked_up:
        loads = max(loads, _supply_seconds(found, method, rows, target)) + target.latency_seconds
    return target.latency_seconds + loads + finish


def _supply_seconds(found: Problem, method: Streamed, rows: int, target: Target) -> float:
    """Seconds in which the supplier issues the copies of a task of `rows` rows."""
    model = fitted(target.model.streaming)
    if not isinstance(method, GemvColumns):
        copies, each = rows * method.row_slots, model.bulk
    elif columns.in_bulk(method, target):
        copies, each = found.along.extent, model.bulk
    else:
        copies, each = found.along.extent / (target.warp // method.packs), model.gather
    return copies * each * target.latency_seconds
