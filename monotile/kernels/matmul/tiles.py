"""A product in register tiles on the CPU: the layout of its operands, and whether the tiles read them in place."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from monotile.analysis.affine import Affine
from monotile.analysis.contraction import factors
from monotile.analysis.runs import run_of
from monotile.codegen.lines import Lines, block_start, stride
from monotile.codegen.site import Point, Range, Site, at_start, unflatten
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Load, add, idx, loads, sub, substitute
from monotile.ir.program import Compute
from monotile.kernels.common.cost import round_up
from monotile.kernels.common.cpu_decode import Words, words_of
from monotile.kernels.common.operand import Operand
from monotile.kernels.common.product import elements_of
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.matmul.panels import panels

COMPUTED = (DType.F32, DType.F64, DType.I32)  # types of sums; the last is for dot products of bytes
LEFT_BYTES = (
    1 << 18
)  # of the left operand, which every panel reads again, where nothing else limits the rows
# The types that tiles and packing read from memory.
STORAGE_NAME = {
    DType.F32: "f32", DType.F64: "f64", DType.F16: "f16", DType.BF16: "bf16", DType.I8: "i8", DType.U8: "u8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Side:
    """One factor over one rectangle of sums and one chunk of K.

    factor: over the axes of the Compute. start: the position of the chunk in all of K. at: all axes at a position in the chunk. value: the
    factor in terms of `line` (a row, or a column) and `depth`, that position.
    place: its offset, where it is a Load that tiles can read, else None. along_depth, along_line: elements from one depth to the next, and
    from one line to the next; None where that is no constant. words: where it is stored as codes along the depth.
    run: how many values of k are contiguous under one condition, of which a chunk has whole ones, or is a part of one; else 0.
    """

    factor: Expr
    start: Expr
    at: Callable[[Expr], Point]
    value: Expr
    line: Axis
    depth: Axis
    place: Affine | None
    along_depth: int | None
    along_line: int | None
    words: Words | None = None
    run: int = 0

    @property
    def load(self) -> Load:
        assert isinstance(self.value, Load)
        return self.value

    @property
    def apart(self) -> bool:
        """Whether its offset is a sum of a part that depends on the line and one that depends on the depth."""
        return self.place is not None and not any(
            Affine(((atom, 1),)).mentions(self.line) and Affine(((atom, 1),)).mentions(self.depth)
            for atom, _ in self.place.terms
        )

    @property
    def steps(self) -> Expr:
        """The offset of the line's element at `depth` relative to its first one, if it is such a sum."""
        assert self.place is not None
        terms = (t for t in self.place.terms if Affine((t,)).mentions(self.depth))
        there = Affine(tuple(terms)).expr
        return sub(there, substitute(there, {self.depth.name: idx(0)}))

    @property
    def major(self) -> Literal["k", "mn", "none"]:
        """The contiguous direction."""
        return "k" if self.along_depth == 1 else "mn" if self.along_line == 1 else "none"


@dataclass(frozen=True, slots=True)
class Tiles:
    """A step that is a product. m, n: its rows and columns. k: its reduction axes, in order. depth: values of these; block_k: of a
    chunk. rows, columns: of the sums that stay in the cache; where all of k is one chunk, of the operand that every panel is
    multiplied with."""

    site: Site
    method: Matmul
    anchor: Compute
    m: Range
    n: Range
    k: tuple[Axis, ...]
    depth: int
    block_k: int
    rows: int
    columns: int

    @property
    def elements(self) -> tuple[DType, DType]:
        """The types of the factors where words of them are multiplied, with equally many bits."""
        left, right = factors(self.anchor, swapped=self.method.swapped)
        return elements_of(left, right, self.anchor)

    @property
    def at_once(self) -> bool:
        """Whether the epilogue of a block of sums comes right after its last products: for an outer product, whose sums are complete
        then."""
        return self.method.instruction == "outer" and not _bounded(self.anchor)

    @property
    def in_one(self) -> bool:
        """Whether all of k is one chunk, so that only the sums of a block are ever kept."""
        return in_one_chunk(self.anchor, self.method)

    @property
    def element(self) -> DType:
        return self.elements[0]

    @property
    def whole_panels(self) -> bool:
        """Whether every panel of the right side has all its columns."""
        dim = self.n.dim
        names = {b.axis for b in self.site.step.bounds}
        bounded = any(self.anchor.axes[p].name in names for p in dim.axes)
        return dim.extent % dim.tile == 0 and dim.tile % self.method.block_n == 0 and not bounded

    def sides(self, lines: Lines, m0: Expr, n0: Expr, k0: Expr) -> tuple[Side, Side]:
        """The left and the right operand, over the sums from row m0 and column n0 on, and a chunk of K from k0 on."""
        left, right = factors(self.anchor, swapped=self.method.swapped)
        row, column = Axis("row", self.rows), Axis("column", self.columns)
        down = self._lines(self.m, self.n, add(m0, row))
        across = self._lines(self.n, self.m, add(n0, column))
        return (
            self._side(lines, left, down, row, k0),
            self._side(lines, right, across, column, k0),
        )

    def _lines(self, r: Range, other: Range, line: Expr) -> Point:
        """All axes of the sums at a line of range `r`."""
        axes = [self.anchor.axes[p] for p in r.dim.axes]
        return {**at_start(self.site, other).point, **unflatten(add(r.origin, line), axes)}

    def _side(self, lines: Lines, factor: Expr, point: Point, line: Axis, k0: Expr) -> Side:
        depth = Axis("depth", self.block_k)

        def at(position: Expr) -> Point:
            return {**point, **unflatten(add(k0, position), self.k)}

        value = substitute(factor, dict(at(depth)))
        place = along_depth = along_line = None
        if (
            isinstance(value, Load)
            and value.dtype in STORAGE_NAME
            and not any(loads(i) for i in value.index)
        ):
            place = lines.offset(value)
            along_depth, along_line = stride(place, depth), stride(place, line)
        whole = (
            len(self.k) == 1 and self.anchor.live_along(self.k[0]) is None
        )  # else a word may have a part
        words = words_of(factor, self.k[0], self.block_k) if whole else None
        run = run_of(factor, self.k)
        run = run if run and (self.block_k % run == 0 or run % self.block_k == 0) else 0
        return Side(factor, k0, at, value, line, depth, place, along_depth, along_line, words, run)


def tiles_of(site: Site, anchor: Compute, method: Matmul) -> Tiles:
    """A step with that anchor and method."""
    k = tuple(anchor.reduce[p] for p in method.k)
    depth = math.prod(a.extent for a in k)
    rows, columns = block = method.sums or (method.block_m, method.block_n)
    if in_one_chunk(anchor, method) and block == (method.block_m, method.block_n):
        sides = (site.ranges[d].dim for d in (method.m, method.n))
        rows, columns = (
            round_up(min(d.tile, d.extent), size) for d, size in zip(sides, block, strict=True)
        )
        again = LEFT_BYTES // (depth * anchor.body.dtype.itemsize)
        rows = min(rows, round_up(again, method.block_m))
    m, n, block_k = site.ranges[method.m], site.ranges[method.n], min(method.block_k, depth)
    return Tiles(site, method, anchor, m, n, k, depth, block_k, rows, columns)


def in_one_chunk(anchor: Compute, method: Matmul) -> bool:
    """Whether it is an outer product that reads its left operand in place, with all of k in one chunk."""
    if method.instruction != "outer" or method.left.copy != "direct" or _bounded(anchor):
        return False
    return math.prod(anchor.reduce[p].extent for p in method.k) <= method.block_k


def _bounded(anchor: Compute) -> bool:
    """Whether the live extent of k is known only during the call."""
    return any(x.axis in anchor.reduce for x in anchor.live)


def first_sides(tiles: Tiles, lines: Lines) -> tuple[Side, Side]:
    """The left and the right operand over any rectangle of sums and any chunk."""
    starts = (
        block_start("mo", tiles.m.variable.extent, tiles.rows),
        block_start("no", tiles.n.variable.extent, tiles.columns),
        block_start("ko", tiles.depth, tiles.block_k),
    )
    return tiles.sides(lines, *starts)


def tile_sides(tiles: Tiles, lines: Lines) -> tuple[Operand, Operand]:
    """The best way for tiles to read the left and the right operand: in place, or from a copy in panels where the method wants that, but
    a right one of rows times vectors of columns that the method wants packed is packed; else packed."""
    left, right = _ways(tiles, lines)
    wanted = tiles.method.instruction == "dot" or tiles.method.right.copy == "direct"
    return left[0], next(w for w in right if wanted or w.copy != "direct")


def why_not_read(tiles: Tiles, lines: Lines) -> str:
    """Why tiles cannot read the operands as the method says; "" where they can."""
    method = tiles.method
    for name, side, ways in zip(
        ("left", "right"), (method.left, method.right), _ways(tiles, lines), strict=True
    ):
        if side not in ways:
            return f"the {name} one is not {side.describe()}"
    return ""


def _ways(tiles: Tiles, lines: Lines) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """The ways in which tiles can read the left and the right operand, the best first."""
    left, right = _in_memory(tiles, lines)
    copied = panels(tiles.site.step, lines.view) is not None
    return left, (Operand("none", 1, "panels"), *right) if copied else right


def _in_memory(tiles: Tiles, lines: Lines) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """The same, without copies of weights."""
    left, right = first_sides(tiles, lines)
    if tiles.method.instruction == "dot":
        lie = left.along_depth == 1, right.along_depth == 1
        return _read(left, in_place=lie[0]), _read(right, in_place=lie[1])
    if tiles.method.instruction == "words":
        straight = left.along_depth == 1 and left.along_line is not None
        return _read(left, in_place=straight and left.value.dtype is tiles.element), _read(
            right, in_place=False
        )
    own = left.value.dtype is tiles.anchor.body.dtype
    steps = left.apart and own
    runs = (Operand("k", 1, "runs"),) if left.run and own and not tiles.anchor.live else ()
    panels = right.along_depth is not None and right.along_line == 1 and tiles.whole_panels
    return (*runs, *_read(left, in_place=steps)), _read(right, in_place=panels)


def _read(side: Side, *, in_place: bool) -> tuple[Operand, ...]:
    """Decoded; in place or packed: in its contiguous direction, or value by value."""
    copies: tuple[Literal["direct", "element"], ...] = ("direct", "element")
    decoded = (Operand("k", 1, "decode"),) if side.words else ()
    return decoded + tuple(
        Operand(major, 1, copy)
        for copy in copies[not in_place :]
        for major in dict.fromkeys((side.major, "none"))
    )
