"""Products with streamed weights on tensor cores: how rows, columns and on-chip memory are shared."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from monotile.analysis.affine import contiguous_run, offset
from monotile.analysis.codes import Codes, codes_in
from monotile.analysis.encoding import Side
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Load, children, idx, mul, substitute
from monotile.kernels.common import cost
from monotile.kernels.gemv.method import Brought, GemvMma
from monotile.kernels.gemv.pairs import in_pairs
from monotile.kernels.gemv.problem import Problem
from monotile.targets.target import Target

RUNS = (16, 8, 4)  # bytes that a lane decodes at once
MOST_ELEMENTS = 32  # that these are
SLOT = 1 << 15  # bytes of a slot, about; less where the vectors take much of what there is
MOST_SLOT = 40 << 10
MOST_TILES = 2  # of 8 rows that a warp takes at once
MOST_VECTORS = 132 << 10  # bytes of the vectors on chip
MANY_VECTORS = 64 << 10
ROW = 8  # rows of a tile
VECTORS = (4, 8, 16)  # bytes that a lane of the supplier can bring into a slot


@dataclass(frozen=True, slots=True)
class SideArray:
    """A scale, a zero, a table: where a task has it on chip, from byte `offset` of its scratch on, or of each slot. count: values of a row, or a piece of it. pitch: bytes
    from row to row."""

    dtype: DType
    count: int
    pitch: int
    offset: int
    in_slot: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """What a step keeps in its scratch: the vectors, sides of the rows, tables, and sums."""

    vector_pitch: int  # elements
    sides: tuple[SideArray, ...]
    tables: tuple[SideArray, ...]
    sums: int
    nbytes: int


def by_value(side: Side, along: Axis) -> tuple[Load, Axis]:
    """The side as its values of a row follow each other: number `value`."""
    value = Axis("value", along.extent // side.run if side.run else 1)
    load = substitute(side.load, {along.name: mul(value, idx(side.run))})
    assert isinstance(load, Load)
    return load, value


def elements(found: Problem, run: int) -> int:
    """That so many bytes of a row hold."""
    return run // found.matrix.dtype.itemsize * found.per


def padded_rows(method: GemvMma, rows: int) -> int:
    return cost.round_up(rows, method.slot_rows)


def layout(found: Problem, method: GemvMma, rows: int, vectors: int) -> Layout:
    """Of a task with so many rows."""
    columns = found.along.extent
    pitch = columns + (8 if vectors > 1 else 0)
    at = cost.round_up(vectors * pitch * found.factor.dtype.itemsize, 128)
    many = padded_rows(method, rows)
    sides: list[SideArray] = []
    for k, s in enumerate(found.codes.sides if found.codes else ()):
        dtype, brought = s.load.dtype, method.sides[k]
        if brought is not None:
            count = brought.nbytes // dtype.itemsize
            sides.append(SideArray(dtype, count, brought.pitch, method.side_at(k), in_slot=True))
            continue
        count = by_value(s, found.along)[1].extent
        words = -(-count * dtype.itemsize // 4)
        line = 4 * (words + (words + 1) % 2)  # an odd number of words: rows meet in no bank
        sides.append(SideArray(dtype, count, line, at))
        at += cost.round_up(many * line, 128)
    tables: list[SideArray] = []
    for x in found.codes.tables if found.codes else ():
        count = x.tensor.shape[-1]
        tables.append(SideArray(x.dtype, count, count * x.dtype.itemsize, at))
        at += cost.round_up(tables[-1].pitch, 128)
    nbytes = at + 4 * many * method.parts * vectors
    return Layout(pitch, tuple(sides), tuple(tables), at, nbytes)


def choose(found: Problem, vectors: int, rows: int, target: Target) -> GemvMma | None:
    """The method for so many rows a task; None where there is none."""
    found_ways = list(ways(found, vectors, rows, target))
    return min(found_ways, key=lambda w: padded_rows(w, rows), default=None)


def ways(found: Problem, vectors: int, rows: int, target: Target) -> Iterator[GemvMma]:
    """Every method for so many rows a task, the likeliest first."""
    if "mma.sync" not in target.instructions or vectors > 2 * ROW:
        return
    columns, warps = found.along.extent, target.threads // target.warp
    held = vectors * columns * found.factor.dtype.itemsize
    slot = SLOT if held <= MANY_VECTORS else SLOT // 2
    if held > MOST_VECTORS:
        return
    for run in RUNS:
        if not _fits(found, run):
            continue
        blocks = columns // (4 * elements(found, run))
        parts = next((p for p in (8, 4, 2, 1) if p <= min(warps, blocks)), 1)
        for tiles in (MOST_TILES, 1) if rows > ROW * (warps // parts) else (1,):
            way = _cut(found, run, blocks, (parts, tiles), slot, target)
            if way is not None:
                yield way


def _fits(found: Problem, run: int) -> bool:
    """Whether a lane may decode so many bytes at once: it needs one value of each side, and whole products of 4 columns."""
    size = found.matrix.dtype.itemsize
    if run % size:
        return False
    count = elements(found, run)
    sides = found.codes.sides if found.codes else ()
    shared = all(s.run % count == 0 for s in sides)
    return 4 <= count <= MOST_ELEMENTS and shared and found.along.extent % (4 * count) == 0


def _cut(
    found: Problem, run: int, blocks: int, shares: tuple[int, int], slot: int, target: Target
) -> GemvMma | None:
    """With pieces of rows such that a slot has about so many bytes. shares: warps that share a row, tiles of each."""
    warps, (parts, tiles) = target.threads // target.warp, shares
    rows = ROW * tiles * (warps // parts)
    if rows > target.warp:
        return None
    sizes = [b for b in range(1, blocks + 1) if blocks % b == 0 and b * 4 * run % 16 == 0]
    fitting = [b for b in sizes if b * 4 * run * rows <= slot] or sizes[:1]
    if not fitting or fitting[-1] * 4 * run * rows > MOST_SLOT:
        return None
    taken = fitting[-1]
    pieces, piece = blocks // taken, taken * 4 * run
    sides = tuple(
        _brought(found, s, found.along.extent // pieces)
        for s in (found.codes.sides if found.codes else ())
    )
    return GemvMma(found.second, warps, parts, tiles, pieces, piece, run, sides, decoding(found))


def _brought(found: Problem, side: Side, columns: int) -> Brought | None:
    """A side with so many columns of each row, if its values for these can be copied several at a time."""
    if side.run and columns % side.run:
        return None
    size, (load, value) = side.load.dtype.itemsize, by_value(side, found.along)
    count = columns // side.run if side.run else 1
    width = math.gcd(count, contiguous_run(offset(load), value, max(VECTORS) // size))
    return Brought(count * size, width * size) if width * size in VECTORS else None


def decoding(found: Problem) -> Literal["elements", "codes", "pairs"]:
    """How codes are decoded."""
    assert found.codes is not None
    codes = codes_in(found.factor, found.along, found.codes)
    if codes is None or not _around(found, codes):
        return "elements"
    return "codes" if in_pairs(found.factor, codes) is None else "pairs"


def _around(found: Problem, codes: Codes) -> bool:
    """Whether nothing else than the codes and the sides differs along a row."""
    assert found.codes is not None
    shared = {s.load for s in found.codes.sides}

    def differs(e: Expr) -> bool:
        if e == codes.value or e in shared:
            return False
        return e == found.along or any(differs(c) for c in children(e))

    return not differs(found.factor)


def bytes_of(found: Problem, rows: int) -> int:
    """That a task with so many rows streams, or reads besides."""
    sides = sum(
        (found.along.extent // s.run if s.run else 1) * s.load.dtype.itemsize
        for s in (found.codes.sides if found.codes else ())
    )
    return rows * (found.row_bytes + sides)
