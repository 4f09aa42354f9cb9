"""Matrix products on the CPU: register tiles over panels that stay in the cache (Goto and van de Geijn 2008).

A task's region is cut into rectangles of sums that fit the cache; K is cut into chunks of block_k. In a
chunk each panel of block_n columns is taken in once, and all rows advance past it in blocks of block_m.
The sums of a rectangle are finished (and what follows the product computed) row by row at the end.
"""

from collections.abc import Callable
from dataclasses import dataclass

from monotile.analysis.contraction import factors
from monotile.codegen.base import STORAGE
from monotile.codegen.loops import Loops, Point, stride
from monotile.codegen.site import Range, Site, at_start, unflatten
from monotile.codegen.spelling import SUFFIX, bare, convert
from monotile.errors import InternalError
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Load, add, idx, loads, mul, substitute
from monotile.ir.program import Compute
from monotile.kernels.matmul.method import Matmul

STORAGE_NAME = {DType.F32: "f32", DType.F64: "f64", DType.F16: "f16", DType.BF16: "bf16"}


@dataclass(frozen=True, slots=True)
class Side:
    """One factor over one rectangle and one chunk of K.

    factor: over the axes of the Compute. start: the position of the chunk in all of K. at: all axes at a position
    in the chunk. value: the factor in terms of `line` (a row, or a column) and `depth`, that position.
    stride: elements from one depth to the next, and from one line to the next, where it is read from memory in
    place; None where that is no constant.
    """

    factor: Expr
    start: Expr
    at: Callable[[Expr], Point]
    value: Expr
    line: Axis
    depth: Axis
    along_depth: int | None
    along_line: int | None

    @property
    def load(self) -> Load:
        assert isinstance(self.value, Load)
        return self.value


def write(e: Loops, site: Site) -> None:
    """A step that is a product."""
    method = site.step.method
    assert isinstance(method, Matmul)
    _Product(e, site, method).write()


class _Product:
    """Writes one contraction; holds what its parts share."""

    def __init__(self, e: Loops, site: Site, method: Matmul) -> None:
        c = site.anchor
        if not isinstance(c, Compute):
            raise InternalError(f"{c.out.name} is no sum of products")
        self.e, self.site, self.method, self.c = e, site, method, c
        self.m, self.n = site.ranges[method.m], site.ranges[method.n]
        self.left, self.right = factors(c, swapped=method.swapped)
        self.dtype = c.body.dtype
        if self.dtype not in (DType.F32, DType.F64):
            raise InternalError(f"{c.out.name}: no product in {self.dtype}")
        self.kind = e.values[self.dtype]
        self.k = [c.reduce[p] for p in method.k]
        self.depth = 1
        for a in self.k:
            self.depth *= a.extent
        self.bm = method.block_m
        self.bn = method.block_n
        self.bk = min(method.block_k, self.depth)
        self.rows, self.columns = method.sums or (self.bm, self.bn)

    def write(self) -> None:
        e = self.e
        batches = [r for r in self.site.ranges if r is not self.m and r is not self.n]
        size = self.rows * self.columns
        e.writer.write(f"_Alignas(64) {self.kind} sums[{size}];")
        with e.over(batches):
            count_m, count_n = e.count(self.m), e.count(self.n)
            with (
                e.blocks("mo", self.m.variable.extent, count_m, self.rows) as (m0, mc),
                e.blocks("no", self.n.variable.extent, count_n, self.columns) as (n0, nc),
            ):
                first_k, depth = self._walk()
                with e.blocks("ko", self.depth, depth, self.bk) as (chunk, kc):
                    k0 = add(first_k, chunk)
                    rows, columns = Axis("row", self.rows), Axis("column", self.columns)
                    left = self._side(self.left, self.m, self.n, m0, k0, rows)
                    right = self._side(self.right, self.n, self.m, n0, k0, columns)
                    first = "true" if chunk == idx(0) else "ko == 0"
                    if self.method.instruction == "dot":
                        self._dot(left, right, mc, nc, kc, first)
                    else:
                        self._outer(left, right, n0, mc, nc, kc, first)
                self._finish(m0, n0, mc, nc)

    def _walk(self) -> tuple[Expr, str]:
        """Where K begins, and text of how much of it there is."""
        if len(self.k) != 1:
            return idx(0), str(self.depth)
        walk = self.e.walked(self.k[0], self.site)
        return walk.first, walk.count

    def _side(
        self, factor: Expr, r: Range, other: Range, start: Expr, k0: Expr, line: Axis
    ) -> Side:
        fixed = at_start(self.site, other).point
        depth = Axis("depth", self.bk)
        axes = [self.c.axes[p] for p in r.dim.axes]
        lines = unflatten(add(r.origin, add(start, line)), axes)

        def at(position: Expr) -> Point:
            return {**fixed, **lines, **unflatten(add(k0, position), self.k)}

        value = substitute(factor, dict(at(depth)))
        along_depth = along_line = None
        if (
            isinstance(value, Load)
            and value.dtype in STORAGE_NAME
            and not any(loads(i) for i in value.index)
        ):
            offset = self.e.offset(value)
            along_depth, along_line = stride(offset, depth), stride(offset, line)
        return Side(factor, k0, at, value, line, depth, along_depth, along_line)

    def _in_place(self, side: Side, line: Axis) -> str:
        """Text of the address of a line of the side at depth 0, where `along_depth` is known."""
        start = substitute(side.value, {side.depth.name: idx(0), side.line.name: line})
        assert isinstance(start, Load)
        pointer, offset = self.e.element(start)
        return f"{pointer} + {bare(offset)}"

    def _lines(self, side: Side, names: str, block: str, start: str, count: str, size: int) -> None:
        """Write an array `names` of pointers to the lines start, ..., start + size - 1, the last of `count` again
        for those beyond it. block: a packed copy to point into, or "" for memory itself."""
        e = self.e
        kind = self.kind if block else STORAGE[side.load.dtype]
        e.writer.write(f"const {kind}* {names}[{size}];")
        with e.writer.open(f"for (idx i = 0; i < {size}; ++i)", ["i", side.line.name]):
            last = f"mt_min_idx({start} + i, {count} - 1)"
            e.writer.write(f"const idx {side.line.name} = {last};")
            text = (
                f"{block} + {side.line.name} * {self.bk}"
                if block
                else self._in_place(side, side.line)
            )
            e.writer.write(f"{names}[i] = {text};")

    def _pack_lines(self, side: Side, into: str, count: str, kc: str) -> None:
        """Write the evaluation of a side into rows of block_k elements."""
        e = self.e

        def write(here: Point, at: Expr) -> None:
            text = convert(e.body(side.factor, here), side.value.dtype, self.dtype)
            place = e.index(add(mul(side.line, idx(self.bk)), at))
            e.writer.write(f"{into}[{bare(place)}] = {bare(text)};")

        with e.writer.open(*e.counted(side.line, count)):
            e.along(side.depth, kc, side.start, side.at, [side.factor], write)

    def _dot(self, left: Side, right: Side, mc: str, nc: str, kc: str, first: str) -> None:
        e = self.e
        a_block = b_block = ""
        if left.along_depth != 1:
            a_block = "left"
            e.writer.write(f"_Alignas(64) {self.kind} left[{self.rows * self.bk}];")
            self._pack_lines(left, "left", mc, kc)
        if right.along_depth != 1:
            b_block = "right"
            e.writer.write(f"_Alignas(64) {self.kind} right[{self.columns * self.bk}];")
            self._pack_lines(right, "right", nc, kc)
        a = SUFFIX[self.dtype] if a_block else STORAGE_NAME[left.value.dtype]
        b = SUFFIX[self.dtype] if b_block else STORAGE_NAME[right.value.dtype]
        name = e.kernel("dot", self.bm, self.bn, self.dtype, {"A": a, "B": b})
        with e.writer.open(f"for (idx nb = 0; nb < {nc}; nb += {self.bn})", ["nb"]):
            self._lines(right, "b", b_block, "nb", nc, self.bn)
            with e.writer.open(f"for (idx mb = 0; mb < {mc}; mb += {self.bm})", ["mb"]):
                self._lines(left, "a", a_block, "mb", mc, self.bm)
                at = f"sums + mb * {self.columns} + nb"
                e.writer.write(f"{name}(a, b, {kc}, {at}, {self.columns}, {first});")

    def _outer(
        self, left: Side, right: Side, n0: Expr, mc: str, nc: str, kc: str, first: str
    ) -> None:
        e = self.e
        a_block, a_step = "", left.along_depth
        if a_step is None or left.value.dtype is not self.dtype:
            a_block, a_step = "left", 1
            e.writer.write(f"_Alignas(64) {self.kind} left[{self.rows * self.bk}];")
            self._pack_lines(left, "left", mc, kc)
        direct = (
            self.method.right.copy == "direct"
            and right.along_line == 1
            and right.along_depth is not None
            and self._whole_panels()
        )
        b = STORAGE_NAME[right.value.dtype] if direct else SUFFIX[self.dtype]
        vectors = self.bn * self.dtype.itemsize // e.target.vector_bytes
        name = e.kernel("outer", self.bm, vectors, self.dtype, {"B": b})
        if not direct:
            e.writer.write(f"_Alignas(64) {self.kind} right[{self.bn * self.bk}];")
        with e.writer.open(f"for (idx nb = 0; nb < {nc}; nb += {self.bn})", ["nb"]):
            panel, b_step = "right", self.bn
            if direct:
                panel = self._in_place(right, Axis("nb", self.columns))
                b_step = right.along_depth or 0
            else:
                self._panel(right, n0, nc, kc)
            with e.writer.open(f"for (idx mb = 0; mb < {mc}; mb += {self.bm})", ["mb"]):
                self._lines(left, "a", a_block, "mb", mc, self.bm)
                at = f"sums + mb * {self.columns} + nb"
                e.writer.write(
                    f"{name}(a, {a_step}, {panel}, {b_step}, {kc}, {at}, {self.columns}, {first});"
                )

    def _whole_panels(self) -> bool:
        """Whether every panel of the right side has all its columns."""
        dim = self.n.dim
        return dim.extent % dim.tile == 0 and dim.tile % self.bn == 0 and self.n.count.isdigit()

    def _panel(self, right: Side, n0: Expr, nc: str, kc: str) -> None:
        """Write the taking in of block_n columns from `nb` on as `right`[depth][column - nb]."""
        e = self.e
        if right.along_depth == 1 and isinstance(right.value, Load):
            self._lines(right, "lines", "", "nb", nc, self.bn)
            e.writer.write(
                f"mt_pack_transposed_{STORAGE_NAME[right.value.dtype]}(lines, {self.bn}, {kc}, right);"
            )
            return
        j, nb = Axis("j", self.bn), Axis("nb", self.columns)
        axes = [self.c.axes[p] for p in self.n.dim.axes]
        start = add(self.n.origin, add(n0, nb))
        depth = unflatten(add(right.start, right.depth), self.k)
        fixed = at_start(self.site, self.m).point

        def point(local: Expr) -> Point:
            return {**fixed, **unflatten(add(start, local), axes), **depth}

        taken = e.short(f"mt_min_idx({self.bn}, {nc} - nb)")
        with (
            e.rows(j, taken, start, point, [right.factor]) as row,
            e.writer.open(*e.counted(right.depth, kc)),
        ):
            here = point(row.at)

            def write() -> None:
                text = convert(e.body(right.factor, here), right.value.dtype, self.dtype)
                place = e.index(add(mul(right.depth, idx(self.bn)), row.at))
                e.writer.write(f"right[{bare(place)}] = {bare(text)};")

            e.each(row, [substitute(right.factor, dict(here))], write)

    def _finish(self, m0: Expr, n0: Expr, mc: str, nc: str) -> None:
        """Write what becomes of the sums."""
        e, site = self.e, self.site
        row, column = Axis("row", self.rows), Axis("column", self.columns)
        with e.writer.open(*e.counted(row, mc)):
            across = e.moved(site, self.m, add(m0, row))
            axes = [self.c.axes[p] for p in self.n.dim.axes]

            def point(local: Expr) -> Point:
                return {**across, **unflatten(add(self.n.origin, add(n0, local)), axes)}

            def write(here: Point, local: Expr) -> None:
                at = e.index(add(mul(row, idx(self.columns)), local))
                e.finish(site, here, f"sums[{bare(at)}]", self.dtype)

            e.along(column, nc, add(self.n.origin, n0), point, e.later_uses(site), write)
