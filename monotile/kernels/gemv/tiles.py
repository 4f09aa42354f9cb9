"""Products with streamed codes on tensor cores: the division of rows, columns and on-chip memory."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

from monotile.analysis.affine import Affine, contiguous_run, offset
from monotile.analysis.codes import Codes, codes_in
from monotile.analysis.encoding import Side
from monotile.analysis.streaming import VECTOR
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Load, children, idx, loads, mul, substitute
from monotile.kernels.common import cost
from monotile.kernels.gemv.method import PARTS, GemvMma, SlotOperand
from monotile.kernels.gemv.pairs import in_pairs
from monotile.kernels.gemv.problem import Problem
from monotile.targets.model import fitted
from monotile.targets.target import Target

RUNS = (16, 8, 4)  # bytes that a lane decodes at once
MOST_ELEMENTS = 32  # elements in these
SLOT = 1 << 15  # bytes of a slot, about
MOST_SLOT = 40 << 10
TILES = (4, 2, 1)  # tiles of 8 rows that a warp processes at once
MOST_VECTORS = 64 << 10  # bytes of the vectors on chip
ROW = 8  # rows of a tile
VECTORS = (4, 8, 16)  # bytes that a lane of the supplier can copy into a slot


@dataclass(frozen=True, slots=True)
class SideArray:
    """A scale, a zero or a table on chip, at byte `offset` of the task's scratch, or of each slot. count: values of a row, or of a piece of
    one. pitch: bytes from row to row."""

    dtype: DType
    count: int
    pitch: int
    offset: int
    in_slot: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """A step's scratch: vectors, sides of the rows, tables and sums."""

    vector_pitch: int  # elements
    sides: tuple[SideArray, ...]
    tables: tuple[SideArray, ...]
    sums: int
    nbytes: int


def by_value(side: Side, along: Axis) -> tuple[Load, Axis]:
    """The load of a side's value number `value` of a row, and that axis."""
    value = Axis("value", along.extent // side.run if side.run else 1)
    load = substitute(side.load, {along.name: mul(value, idx(side.run))})
    assert isinstance(load, Load)
    return load, value


def elements(found: Problem, run: int) -> int:
    """The elements in `run` bytes of a row."""
    return run // found.matrix.dtype.itemsize * found.per


def padded_rows(method: GemvMma, rows: int) -> int:
    return cost.round_up(rows, method.slot_rows)


def layout(found: Problem, method: GemvMma, rows: int, vectors: int) -> Layout:
    """The layout of a task with `rows` rows."""
    columns = 4 * method.blocks * method.pieces * elements(found, method.run)  # in whole blocks
    pitch = columns + (8 if vectors > 1 else 0)
    held = vectors * pitch * found.factor.dtype.itemsize if method.vectors == "chip" else 0
    at = cost.round_up(held, 128)
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
        line = 4 * (
            words + (words + 1) % 2
        )  # an odd number of words: no bank conflicts between rows
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
    """The fastest method for `rows` rows per task, of those alike that with the fewest pieces; None if there is none."""

    def taken(way: GemvMma) -> tuple[float, int]:
        pieces = padded_rows(way, rows) * way.pieces
        return round(seconds(found, way, (rows, vectors), target), 9), pieces

    return min(ways(found, vectors, rows, target), key=taken, default=None)


def ways(found: Problem, vectors: int, rows: int, target: Target) -> Iterator[GemvMma]:
    """All methods for `rows` rows per task; of those as fast, the ones to prefer first."""
    if "mma.sync" not in target.instructions:
        return
    warps = target.threads // target.warp
    for run in (r for r in RUNS if _fits(found, r)):
        for parts, tiles in product((p for p in reversed(PARTS) if p <= warps), TILES):
            if tiles == 1 or rows > ROW * tiles // 2 * (warps // parts):
                way = _cut(found, run, (parts, tiles), vectors, target)
                if way is not None:
                    yield way


def seconds(found: Problem, method: GemvMma, size: tuple[int, int], target: Target) -> float:
    """Seconds in which a task's weights arrive and are decoded, one after the other. size: its rows and vectors."""
    model, (rows, vectors) = fitted(target.model.streaming), size
    runs = method.tiles * -(-method.blocks // method.parts)
    decode = runs * (model.run + elements(found, method.run) // 2 * model.pair)
    gathers = sum(-(-method.slot_rows * s.vectors // target.warp) for s in method.sides if s)
    copies = 1 if method.pieces == 1 else method.slot_rows
    supply = copies * model.bulk + gathers * model.gather
    slots = padded_rows(method, rows) // method.slot_rows * method.pieces
    worked = slots * max(supply, model.slot + decode) * target.latency_seconds
    nbytes = bytes_taken(found, method, rows, vectors)
    return worked + nbytes / target.worker_bandwidth


def _vectors(found: Problem, count: int) -> Literal["chip", "memory"]:
    """Whether vectors are on chip: only if they leave enough of it to the ring."""
    held = count * found.along.extent * found.factor.dtype.itemsize
    return "chip" if held <= MOST_VECTORS else "memory"


def _fits(found: Problem, run: int) -> bool:
    """Whether a lane may decode `run` bytes at once: it needs one value of each side for them, and whole products of 4 columns."""
    size = found.matrix.dtype.itemsize
    if run % size:
        return False
    count = elements(found, run)
    sides = found.codes.sides if found.codes else ()
    shared = all(s.run % count == 0 for s in sides)
    return 4 <= count <= MOST_ELEMENTS and shared and found.along.extent % count == 0


def _cut(
    found: Problem, run: int, shares: tuple[int, int], vectors: int, target: Target
) -> GemvMma | None:
    """The method with pieces of rows such that a slot has about `SLOT` bytes. shares: warps that share a row, and tiles per warp."""
    warps, (parts, tiles), where = target.threads // target.warp, shares, _vectors(found, vectors)
    rows = ROW * tiles * (warps // parts)
    if rows > target.warp:
        return None
    sizes = _pieces(found, run, where)
    fitting = [p for p in sizes if p * rows <= SLOT] or sizes[:1]
    if not fitting or fitting[-1] * rows > MOST_SLOT or parts > -(-fitting[-1] // (4 * run)):
        return None
    piece = fitting[-1]
    pieces = found.row_bytes // piece
    sides = tuple(
        _slot_operand(found, s, found.along.extent // pieces)
        for s in (found.codes.sides if found.codes else ())
    )
    return GemvMma(
        found.second, warps, parts, tiles, pieces, piece, run, sides, where, decoding(found)
    )


def _pieces(found: Problem, run: int, where: str) -> list[int]:
    """Bytes of the pieces in which a row may come: whole blocks of four lanes, that the supplier can copy. A whole row may end within one,
    as vectors on chip do."""
    block, row = 4 * run, found.row_bytes
    if row % block:
        return [row] if where == "chip" and row % VECTOR == 0 else []
    blocks = row // block
    return [b * block for b in range(1, blocks + 1) if blocks % b == 0 and b * block % VECTOR == 0]


def _slot_operand(found: Problem, side: Side, columns: int) -> SlotOperand | None:
    """How a side comes with the codes, for `columns` columns of each row; None if its values for these are not neighbours."""
    if side.run and columns % side.run:
        return None
    size, (load, value) = side.load.dtype.itemsize, by_value(side, found.along)
    count = columns // side.run if side.run else 1
    width = math.gcd(count, contiguous_run(offset(load), value, max(VECTORS) // size))
    if width * size in VECTORS:
        return SlotOperand(count * size, width * size)
    together = count > 1 and offset(load).coefficient(value) == 1
    if not together or loads(shift(side, found.along)):
        return None
    return SlotOperand(count * size, max(VECTORS), aligned=False)


def shift(side: Side, along: Axis) -> Expr:
    """Where the values of a row lie from value number `value` on, in bytes, less whole vectors of the widest kind."""
    size, (load, _) = side.load.dtype.itemsize, by_value(side, along)
    whole, at = max(VECTORS) // size, offset(load)
    terms = tuple((a, c % whole) for a, c in at.terms if c % whole)
    return Affine(terms, at.constant % whole).scale(size).expr


def decoding(found: Problem) -> Literal["elements", "codes", "pairs"]:
    """How codes are decoded."""
    assert found.codes is not None
    codes = codes_in(found.factor, found.along, found.codes)
    if codes is None or not _around(found, codes):
        return "elements"
    return "codes" if in_pairs(found.factor, codes) is None else "pairs"


def _around(found: Problem, codes: Codes) -> bool:
    """Whether only the codes and the sides vary along a row."""
    assert found.codes is not None
    shared = {s.load for s in found.codes.sides}

    def differs(e: Expr) -> bool:
        if e == codes.value or e in shared:
            return False
        return e == found.along or any(differs(c) for c in children(e))

    return not differs(found.factor)


def bytes_of(found: Problem, rows: int) -> int:
    """Bytes of weights that a task with `rows` rows reads."""
    sides = sum(
        (found.along.extent // s.run if s.run else 1) * s.load.dtype.itemsize
        for s in (found.codes.sides if found.codes else ())
    )
    return rows * (found.row_bytes + sides)


def bytes_taken(found: Problem, method: GemvMma, rows: int, vectors: int) -> int:
    """The same, with the rows that fill up slots, and with the vectors as often as they are read."""
    many = padded_rows(method, rows)
    times = many // method.slot_rows if method.vectors == "memory" else 1
    read = vectors * found.along.extent * found.factor.dtype.itemsize
    return bytes_of(found, many) + times * read
