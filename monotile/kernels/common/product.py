"""A Compute as matrix products, and how their operands are loaded."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from monotile.analysis.affine import affine, constant_run, contiguous_run, flattened, offset
from monotile.analysis.contraction import (
    SUMMED_IN,
    Contraction,
    contraction,
    factors,
    grain,
    in_tf32,
    rounded,
)
from monotile.analysis.encoding import coded_sides, run_along
from monotile.analysis.masked import Masked, choice, masked
from monotile.analysis.runs import in_panels, read_in_runs
from monotile.analysis.unconditional import TRUE
from monotile.analysis.uniform import uniform_run
from monotile.analysis.work import PARTS
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Const,
    Expr,
    Load,
    Select,
    SizeTensor,
    axes_of,
    idx,
    loads,
    mul,
    substitute,
    walk,
)
from monotile.ir.program import Compute
from monotile.kernels.common.cost import SECTOR
from monotile.kernels.common.operand import Operand
from monotile.kernels.common.order import is_line, order_of_sum
from monotile.kernels.common.sparse import SPARSE_VECTOR, one_row, takes_sparse
from monotile.kernels.draft import Context
from monotile.targets.target import Target

HALVES = (DType.F16, DType.BF16)
# Tensor-core products for one product of operands of this type.
PASSES = {
    DType.F16: 1,
    DType.BF16: 1,
    DType.I8: 1,
    DType.U8: 1,
    DType.F8E4M3: 1,
    DType.F32: PARTS,
    DType.F64: 0,
}
MIN_SIDE = 4  # a product with fewer rows or columns than this is better done as dot products
ASYNC_BYTES = (16, 8, 4)
NEIGHBOURS = 16  # threads whose loads are counted
LINE = 8  # contiguous elements from which on a line is worth a separate copy
RUNS_VECTOR = 8  # elements of 16 bytes, by which columns in runs copy contiguous operands


@dataclass(frozen=True, slots=True)
class Product:
    """A Compute seen as batched matrix products.

    batch: axis positions that are walked one by one (batch axes of both sides, and axes that select a part of a weight table). m, n: axis
    positions, flattened. k: reduce positions, the contiguous one last.
    grain_m, grain_n: 0, or a tile is within an aligned run of so many values of the side's only axis.
    runs: how many of these n has, if their operands on the left side are contiguous lines of their parts; else 1.
    dtype: of the left operand on chip; the right one has as many bytes. passes: tensor-core products that replace one; 0 where there are
    none.
    part: values of the last of k. swapped: the left operand is the second factor. near: values of k that are contiguous in the left
    operand, where it is copied in whole vectors; 0 for all. coded: a factor is stored as codes, and decoded on its way into on-chip
    memory. bounded: how much of k is live is known during the call. rounded: which operands are known to be in TF32. sparse: the right
    one is 2:4 sparse along k, and the target multiplies such.
    """

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    left: Operand
    right: Operand
    dtype: DType
    passes: int
    grain_m: int = 0
    grain_n: int = 0
    runs: int = 1
    part: int = 1
    near: int = 0
    swapped: bool = False
    coded: bool = False
    bounded: bool = False
    rounded: tuple[bool, bool] = (False, False)
    sparse: bool = False


def elements_of(left: Expr, right: Expr, c: Compute) -> tuple[DType, DType]:
    """The types of the operands in on-chip memory: their own, if hardware multiplies these into sums such as those of `c`."""
    types = (left.dtype, right.dtype)
    together = types[0] is types[1] or all(t.is_int for t in types)
    summed = all(SUMMED_IN.get(t) is c.body.dtype for t in types)
    return types if together and summed else (c.body.dtype, c.body.dtype)


def product(
    c: Compute,
    tables: Mapping[str, int],
    target: Target,
    on_chip: frozenset[str] = frozenset(),
    least: int = MIN_SIDE,
    copied: frozenset[str] = frozenset(),
) -> Product | None:
    """`c` as matrix products worth a contraction's machinery, or None.

    tables: leading table dimensions of every weight that has some. on_chip: tensors that the stage holds itself. least: minimum number
    of rows and columns; where it is 1, an axis of one value will do for the rows. copied: weights of which there may be copies in panels.
    """
    found = contraction_of(c, tables)
    if found is None or not found.n:
        return None
    sparse = takes_sparse(found, c, target)
    m, n = found.m or (one_row(found, c) if sparse or least == 1 else ()), found.n
    if not m:
        return None
    batch = tuple(p for p in range(len(c.axes)) if p not in m and p not in n)
    grains = dict(found.grains)
    grain_m, grain_n = (next((grains[p] for p in side if p in grains), 0) for side in (m, n))
    if (grain_m and len(m) > 1) or (grain_n and len(n) > 1):
        return None
    few = 1 if sparse else least
    if (grain_m or _extent(c, m)) < few or (grain_n or _extent(c, n)) < least:
        return None
    dtype, _ = elements_of(found.left, found.right, c)
    if target.has.register_tiles and dtype.itemsize == 1 and "vnni" not in target.instructions:
        return None
    passes = 1 if in_tf32(c) else PASSES.get(dtype)
    if passes is None:
        return None
    panels = target.has.register_tiles and in_panels(found.right, dtype, copied)
    k = order_of_sum(c, found, target, panels=panels)
    left = _operand(found.left, c, m, k, target, on_chip)
    right = _operand(found.right, c, n, k, target, on_chip)
    right = msgspec.structs.replace(right, copy="panels") if panels else right
    in_runs = read_in_runs(c, found, copied) if panels else 0
    left = Operand("k", 1, "runs") if in_runs else left
    runs = 1
    if (
        dtype in HALVES
        and grain_n
        and left.copy == right.copy == "async"
        and left.major == right.major == "k"
    ):
        runs = _side_by_side(found.left, c, n, k, grain_n)
    part = c.reduce[k[-1]].extent
    whole = left.major == "k" and left.vector * dtype.itemsize >= target.vector_bytes
    near = _near(found.left, c, k) if whole or (panels and left.copy == "direct") else in_runs
    return Product(
        batch, m, n, k, left, right, dtype, passes, grain_m, grain_n, runs, part, near, found.swapped, bool(coded_sides(c)),
        any(x.axis in c.reduce for x in c.live), rounded(c, swapped=found.swapped),
        sparse and not grains and left == Operand("k", SPARSE_VECTOR, "async"),
    )  # fmt: skip


def product_of(
    c: Compute, context: Context, on_chip: frozenset[str] = frozenset()
) -> Product | None:
    """`product` for the target of `context`, memoised: it does not depend on the number of workers."""
    return context.of_worker.once(
        ("product", c, on_chip),
        lambda: product(c, context.tables, context.target, on_chip, copied=context.copied),
    )


def _near(factor: Expr, c: Compute, k: tuple[int, ...]) -> int:
    """How many values of k are contiguous in `factor`, if only some are; 0 if all are, or if it is unknown."""
    found = choice(factor)
    if not found:
        return 0
    where, flat = flattened(offset(found[0].load), [c.reduce[p] for p in k])
    partly = where.coefficient(flat) == 1 and flat.extent < math.prod(c.reduce[p].extent for p in k)
    return flat.extent if partly else 0


def _side_by_side(
    left: Expr, c: Compute, n: tuple[int, ...], k: tuple[int, ...], grain: int
) -> int:
    """The number of runs of `grain` columns along the axis n, if contiguous vectors of `left` extend from one run's part into the next's;
    else 1."""
    found, column, part = masked(left), c.axes[n[0]], c.reduce[k[-1]]
    if found is None or axes_of(found.cond) & {column, part}:
        return 1
    run = Axis("run", column.extent // grain)
    at = {column.name: mul(run, idx(grain))}
    index = tuple(substitute(i, at) for i in found.load.index)
    where = offset(Load(found.load.tensor, index))
    beside = contiguous_run(*flattened(where, [run, part]), RUNS_VECTOR) == RUNS_VECTOR
    return run.extent if beside else 1


def with_sides(
    p: Product,
    c: Compute,
    sides: tuple[tuple[int, ...], tuple[int, ...]],
    target: Target,
    on_chip: frozenset[str],
) -> Product:
    """`p` with fewer axes on its two sides, and operands loaded along those."""
    m, n = sides
    if (m, n) == (p.m, p.n):
        return p
    first, second = factors(c, swapped=p.swapped)
    left = p.left if p.left.copy == "runs" else _operand(first, c, m, p.k, target, on_chip)
    right = _operand(second, c, n, p.k, target, on_chip)
    if p.right.copy == "panels":
        right = msgspec.structs.replace(right, copy="panels")
    return replace(p, m=m, n=n, left=left, right=right)


def _extent(c: Compute, positions: tuple[int, ...]) -> int:
    total = 1
    for p in positions:
        total *= c.axes[p].extent
    return total


def contraction_of(c: Compute, tables: Mapping[str, int]) -> Contraction | None:
    """`c` as a contraction, without side axes that select a part of a weight table: these must not change within a tile."""
    found = contraction(c)
    if found is None:
        return None
    fixed: set[Axis] = set()
    for factor in (found.left, found.right):
        for node in loads(factor):
            for index in node.index[: tables.get(node.tensor.name, 0)]:
                fixed |= axes_of(index)
    apart = frozenset(p for p, a in enumerate(c.axes) if a in fixed)
    return contraction(c, apart) if apart else found


def _operand(
    factor: Expr,
    c: Compute,
    side: tuple[int, ...],
    k: tuple[int, ...],
    target: Target,
    on_chip: frozenset[str],
) -> Operand:
    """How an operand is loaded: contiguous along k, along the side's last axis, or neither. Asynchronous copies read global memory only,
    and skip whole vectors."""
    found = choice(factor)
    if not found or any(_gathers(x.load, c, side, k) for x in found):
        return _evaluated(factor, c, side, k, target)
    whole = found[0].cond == TRUE
    if target.has.register_tiles and not whole:
        return _evaluated(factor, c, side, k, target)
    size = factor.dtype.itemsize
    where = offset(found[0].load)
    along_side = _copied_run(found, c.axes[side[-1]], 16 // size)
    along_k = _copied_run(found, c.reduce[k[-1]], 16 // size) if k else 1
    if whole and k:
        along_k = contiguous_run(*flattened(where, [c.reduce[p] for p in k]), 16 // size)
    major, vector = ("k", along_k) if along_k >= along_side or size == 1 else ("mn", along_side)
    if target.has.register_tiles:
        unit_k = bool(k) and is_line(where, [c.reduce[p] for p in k])
        unit_side = where.coefficient(c.axes[side[-1]]) == 1 and len(side) == 1
        return Operand("k" if unit_k else "mn" if unit_side else "none", 1, "direct")
    in_memory = not {x.load.tensor.name for x in found} & on_chip
    if k and vector == 1 and in_memory and _in_rows(found, [c.reduce[p] for p in k]):
        return Operand("k", 16 // size, "unaligned")
    if vector * size in ASYNC_BYTES and in_memory:
        return Operand("k" if major == "k" else "mn", vector, "async")
    return _evaluated(factor, c, side, k, target)


def _in_rows(found: Sequence[Masked], k: Sequence[Axis]) -> bool:
    """Whether it is a single unconditional load of 16-bit rows that are contiguous along all of k and longer than a vector; 32-bit values
    are copied element by element."""
    x, *others = found
    if others or x.cond != TRUE or x.load.dtype.itemsize != 2:
        return False
    where, flat = flattened(offset(x.load), k)
    return where.coefficient(flat) == 1 and flat.extent * x.load.dtype.itemsize > 2 * ASYNC_BYTES[0]


def _copied_run(found: Sequence[Masked], axis: Axis, limit: int) -> int:
    """Neighbours along `axis` that are contiguous in the selected load, or all zero."""
    runs = (contiguous_run(offset(x.load), axis, limit) for x in found)
    return min(*runs, *(uniform_run(x.cond, axis, limit) for x in found))


def _evaluated(
    factor: Expr, c: Compute, side: tuple[int, ...], k: tuple[int, ...], target: Target
) -> Operand:
    """An operand that is computed before it is stored on chip, in vectors if all of its loads are."""
    if target.has.register_tiles or not k:
        return Operand("none", 1, "element")
    along_k, along_side = tuple(c.reduce[p] for p in k), tuple(c.axes[p] for p in side)
    turned = factor.dtype.itemsize > 1  # on chip: tensor cores want 8-bit elements along k
    nearer = turned and _sectors(factor, along_side) < _sectors(factor, along_k)
    best = Operand("mn" if nearer else "none", 1, "element")
    found = masked(factor)
    if found is None and any(isinstance(x, Select) and not _choosing(x) for x in walk(factor)):
        return best
    fixed = axes_of(found.cond) if found is not None else frozenset[Axis]()
    for major, axis in (("k", c.reduce[k[-1]]), ("mn", c.axes[side[-1]])):
        if axis in fixed or (major == "mn" and not turned):
            continue
        along = [x for x in loads(factor) if not any(loads(i) for i in x.index)]
        read = [x for x in along if offset(x).mentions(axis)]
        limit = 16 // max((x.dtype.itemsize for x in (*read, factor)), default=16)
        run = min((_run(x, axis, limit) for x in read), default=1)
        if run > best.vector:
            best = Operand("k" if major == "k" else "mn", run, "element")
    return best


def _choosing(x: Select) -> bool:
    """Whether both sides of the selection have the same loads, whatever the axes; or codes select between a value and a constant."""
    codes = {y.tensor.dtype.is_int for y in loads(x.cond) if not isinstance(y.tensor, SizeTensor)}
    if codes:
        return codes == {True} and isinstance(x.otherwise, Const)
    return not loads(x.cond) and set(loads(x.then)) == set(loads(x.otherwise))


def _run(x: Load, axis: Axis, limit: int) -> int:
    """Neighbours along the axis whose elements of `x` are in one vector, share elements of one, or are the same: a power of two up to
    `limit`."""
    run = max(contiguous_run(offset(x), axis, limit), constant_run(offset(x), axis, limit))
    per = run_along(x, axis) or 1
    if per == 1:
        return run
    word = Axis(axis.name, axis.extent // per)
    words = Load(x.tensor, (*x.index[:-1], word))
    return min(limit, per * contiguous_run(offset(words), word, max(1, limit // per)))


@functools.lru_cache(maxsize=4096)
def _sectors(factor: Expr, axes: tuple[Axis, ...]) -> int:
    """The number of memory sectors that neighbours along the row-major `axes` touch, with one value each."""
    extents = tuple(a.extent for a in axes)
    count = min(NEIGHBOURS, math.prod(extents))
    places: list[dict[str, Expr]] = [
        {a.name: idx(int(i)) for a, i in zip(axes, np.unravel_index(n, extents), strict=True)}
        for n in range(count)
    ]
    total = 0
    for x in loads(factor):
        at = (affine(substitute(offset(x).expr, p)).constant * x.dtype.itemsize for p in places)
        total += len({place // SECTOR for place in at})
    return total


def _gathers(x: Load, c: Compute, side: tuple[int, ...], k: tuple[int, ...]) -> bool:
    """Whether rows of `x`, or parts of them, are gathered within one product. Indices that are the same for runs of rows, and select whole
    lines along the side or whole vectors along k, do not count."""
    own = {*(c.axes[p] for p in side), *(c.reduce[p] for p in k)}
    found = [y for i in x.index for y in loads(i) if own & axes_of(y)]
    if not found or not k:
        return bool(found)
    by_row = any(grain(y, c.axes[p]) == 1 for y in found for p in side)
    along = (c.axes[side[-1]], c.reduce[k[-1]])
    return by_row or all(contiguous_run(offset(x), a, LINE) < LINE for a in along)
