"""Products with streamed weights summed across rows: the division of columns, rows and on-chip memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from monotile.analysis.contraction import uncast
from monotile.analysis.streaming import VECTOR
from monotile.ir.dtype import DType
from monotile.kernels.common import cost
from monotile.kernels.common.vectors import elements
from monotile.kernels.gemv.method import GemvColumns
from monotile.kernels.gemv.problem import TYPES, Problem
from monotile.plan.nodes import Dim
from monotile.targets.target import Target

SLOT = 1 << 14  # bytes of a slot of the ring, at most
LEAST_SLOT = 1 << 12
MOST_CHIP = 128 << 10  # bytes of a task's vectors and sums


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in a step's scratch, in bytes: the vectors at 0, then `parts`, the sums of threads, then `sums`, those of the task, both
    float32."""

    parts: int
    sums: int
    nbytes: int


def of_task(found: Problem, method: GemvColumns) -> int:
    """Columns of a task."""
    return method.row_bytes // found.matrix.dtype.itemsize


def in_vectors(found: Problem, method: GemvColumns, dims: Sequence[Dim], target: Target) -> bool:
    """Whether a task's columns are whole vectors in memory, along the last axis of the matrix with several; bulk copies of rows allow only
    one such axis."""
    walked = [d for d in dims if not found.walks_vectors(d) and elements([d]) > 1]
    if not walked or walked[-1].tile % (VECTOR // found.matrix.dtype.itemsize):
        return False
    several = [p for d in walked for p in d.axes if p in found.wide]
    return len(several) == 1 or not in_bulk(method, target)


def vector_type(found: Problem) -> DType:
    """The type of the vectors on chip: their own, or float32."""
    own = uncast(found.vectors).dtype
    return own if own in TYPES else DType.F32


def layout(found: Problem, method: GemvColumns, vectors: int) -> Layout:
    """The layout of a task's scratch."""
    each = 4 * vectors * of_task(found, method)
    size = vector_type(found).itemsize
    parts = cost.round_up(size * vectors * found.along.extent, VECTOR)
    sums = parts + each * method.lanes
    return Layout(parts, sums, sums + each)


def choose(found: Problem, vectors: int, columns: int, target: Target) -> GemvColumns | None:
    """The method for at least `columns` columns per task, in whole vectors; None if too few of them are contiguous in memory, or on-chip
    memory is too small."""
    row = cost.round_up(columns * found.matrix.dtype.itemsize, VECTOR)
    if row > VECTOR * target.threads:
        return None
    method = GemvColumns(found.second, row, 1, target.threads)
    most = min(SLOT // row, target.warp) if in_bulk(method, target) else SLOT // row
    rows = max((r for r in range(1, most + 1) if found.along.extent % r == 0), default=1)
    method = msgspec.structs.replace(method, rows=rows)
    if method.slot_bytes < LEAST_SLOT or layout(found, method, vectors).nbytes > MOST_CHIP:
        return None
    return method


def in_bulk(method: GemvColumns, target: Target) -> bool:
    """Whether each row of a slot is one bulk copy, issued by a lane; otherwise all lanes copy vectors."""
    return method.row_bytes > VECTOR * target.warp
