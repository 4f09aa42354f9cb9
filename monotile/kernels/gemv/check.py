"""Checks that a step with streamed weights is valid."""

import math

from monotile.analysis.streaming import VECTOR
from monotile.ir.program import Compute
from monotile.kernels.common.vectors import elements
from monotile.kernels.family import Checked, Statements
from monotile.kernels.gemv import columns, tiles
from monotile.kernels.gemv.cuts import MOST_HELD, held, scratch_of
from monotile.kernels.gemv.method import PARTS, Gemv, GemvColumns, GemvMma, Streamed
from monotile.kernels.gemv.problem import Problem, stored
from monotile.plan.invalid import fail
from monotile.plan.nodes import Stage


def check(c: Checked) -> None:
    """Fails unless the matrix is a weight that the launch does not change, warps share its rows and slots evenly, and a worker has at most
    one task."""
    stage, anchor, method, target = c.stage, c.anchor, c.step.method, c.target
    assert isinstance(method, Streamed)
    name = anchor.out.name
    found = stored(anchor, method.second) if isinstance(anchor, Compute) and anchor.reduce else None
    if found is None or not _weights(found) <= c.steady:
        fail(f"{stage.name}: {name} is no matrix of weights times a few vectors")
        return
    if "tma" not in target.instructions:
        fail(f"{stage.name}: the target cannot stream the weights of {name}")
    if any(d.lead for d in c.step.dims):
        fail(f"{stage.name}: {name} cannot have rows in front")
    vectors = elements([d for d in c.step.dims if found.walks_vectors(d)])
    rows = elements([d for d in c.step.dims if not found.walks_vectors(d)])
    if any(0 < len(set(d.axes) & set(found.m)) < len(d.axes) for d in c.step.dims):
        fail(f"{stage.name}: a dim of {name} has rows of the matrix and vectors")
    if elements([d for d in c.step.dims if set(d.axes) & set(found.apart)]) > 1:
        fail(f"{stage.name}: a task of {name} has rows with other vectors, or that lie elsewhere")
    if found.across is not isinstance(method, GemvColumns):
        fail(f"{stage.name}: {method.describe()} is not how memory has the matrix of {name}")
    elif isinstance(method, GemvColumns):
        _check_columns(c, found, method, rows, vectors)
    elif isinstance(method, Gemv):
        _check_dots(c, found, method, vectors)
    else:
        _check_tiles(c, found, method, rows, vectors)
    if c.step.scratch_bytes < scratch_of(found, method, rows, vectors, target):
        fail(f"{stage.name}: {c.step.scratch_bytes} bytes do not hold the sums of {name}")
    if math.prod(stage.grid) > target.workers:
        fail(f"{stage.name}: a worker streams the weights of several tasks for {name}")


def _weights(found: Problem) -> set[str]:
    """The tensors of the factor, without those that say where its rows are."""
    codes = found.codes
    sides = (*(s.load for s in codes.sides), *codes.tables) if codes else ()
    return {x.tensor.name for x in (found.matrix, *sides)}


def _check_dots(c: Checked, found: Problem, method: Gemv, vectors: int) -> None:
    """Warps share rows and slots evenly, and threads can hold the vectors in registers."""
    stage, name, target = c.stage, c.anchor.out.name, c.target
    if found.codes is not None:
        fail(f"{stage.name}: threads cannot take the codes of {name} as they are")
    if method.parts not in PARTS or method.parts * target.warp > target.threads or method.rows < 1:
        fail(f"{stage.name}: {method.parts} warps cannot share {method.rows} rows for {name}")
    if found.row_bytes % (method.parts * VECTOR):
        fail(f"{stage.name}: {method.parts} warps cannot share the columns of {name} evenly")
    if method.rows > target.warp or method.chunk_bytes != method.rows * found.row_bytes // method.parts:  # fmt: skip
        fail(f"{stage.name}: {method.rows} rows for {name} are not {method.chunk_bytes} bytes")
    if (
        method.team not in PARTS
        or (method.parts > method.team and method.rows > 1)
        or method.team * method.turns * target.warp != target.threads
    ):
        fail(f"{stage.name}: {method.team} warps cannot share a slot of rows for {name}")
    if method.slot_rows > target.warp:
        fail(f"{stage.name}: a slot has {method.slot_rows} rows for {name}, each for a lane")
    columns = found.along.extent // method.parts
    if vectors * held(columns, found.matrix.dtype.itemsize, target) > MOST_HELD:
        fail(f"{stage.name}: threads cannot hold {vectors} vectors of {columns} for {name}")


def _check_columns(
    c: Checked, found: Problem, method: GemvColumns, rows: int, vectors: int
) -> None:
    """The method is the one that `columns.choose` gives, with whole vectors."""
    if method != columns.choose(found, vectors, columns.of_task(found, method), c.target):
        fail(f"{c.stage.name}: {c.anchor.out.name} cannot have columns so: {method.describe()}")
    if rows != columns.of_task(found, method) or not columns.in_vectors(
        found, method, c.step.dims, c.target
    ):
        fail(f"{c.stage.name}: a task's columns of {c.anchor.out.name} are not whole vectors")


def _check_tiles(c: Checked, found: Problem, method: GemvMma, rows: int, vectors: int) -> None:
    """The method is one of `tiles.ways`."""
    possible = tiles.ways(found, vectors, rows, c.target)
    if method not in possible:
        fail(f"{c.stage.name}: {c.anchor.out.name} cannot have tiles so: {method.describe()}")


def why_not_late(_stage: Stage, _statements: Statements) -> str | None:
    """It always may: before the hand-off it reads nothing that other stages write, and its weights are loaded by the supplier."""
    return None
