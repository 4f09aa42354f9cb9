"""Matrix products on the CPU: register tiles over panels that stay in the cache (Goto and van de Geijn 2008).

A task's region is cut into rectangles of sums that fit the cache; K is cut into chunks of block_k. In a
chunk each panel of block_n columns is taken in once, and all rows advance past it in blocks of block_m.
The sums of a rectangle are finished (and what follows the product computed) row by row at the end.
"""

from monotile.codegen.base import STORAGE
from monotile.codegen.loops import Loops
from monotile.codegen.site import Point, Site, at_start, moved, unflatten
from monotile.codegen.spelling import SUFFIX, bare, convert
from monotile.errors import InternalError
from monotile.ir.expr import Axis, Expr, Load, add, idx, mul, substitute
from monotile.ir.program import Compute
from monotile.kernels.common.cpu_decode import POSITION, write_decoded
from monotile.kernels.matmul.cpu_columns import of_columns
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.matmul.tiles import COMPUTED, STORAGE_NAME, Side, tiles_of


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
        self.tiles = tiles_of(site, c, method)
        self.m, self.n, self.bk = self.tiles.m, self.tiles.n, self.tiles.block_k
        self.rows, self.columns = self.tiles.rows, self.tiles.columns
        self.bm, self.bn = method.block_m, method.block_n
        self.dtype = c.body.dtype
        if self.dtype not in COMPUTED:
            raise InternalError(f"{c.out.name}: no product in {self.dtype}")
        self.kind = e.values[self.dtype]

    def write(self) -> None:
        e, depth = self.e, self.tiles.depth
        batches = [r for r in self.site.ranges if r is not self.m and r is not self.n]
        size = self.rows * self.columns
        e.writer.write(f"_Alignas(64) {self.kind} sums[{size}];")
        with e.over(batches):
            count_m, count_n = e.count(self.m), e.count(self.n)
            with (
                e.blocks("mo", self.m.variable.extent, count_m, self.rows) as (m0, mc),
                e.blocks("no", self.n.variable.extent, count_n, self.columns) as (n0, nc),
            ):
                first_k, depth_text = self._walk()
                if not depth_text.isdigit():  # a row's bounds may leave nothing
                    clear = f"for (idx i = 0; i < {size}; ++i) sums[i] = 0;"
                    e.writer.write(f"if ({depth_text} <= 0) {{ {clear} }}")
                with e.blocks("ko", depth, depth_text, self.bk) as (chunk, kc):
                    left, right = self.tiles.sides(e.lines, m0, n0, add(first_k, chunk))
                    first = "true" if chunk == idx(0) else "ko == 0"
                    if self.method.instruction == "dot":
                        self._dot(left, right, mc, nc, kc, first)
                    else:
                        self._outer(left, right, n0, mc, nc, kc, first)
                self._finish(m0, n0, mc, nc)

    def _walk(self) -> tuple[Expr, str]:
        """Where K begins, and text of how much of it there is."""
        if len(self.tiles.k) != 1:
            return idx(0), str(self.tiles.depth)
        walk = self.e.walked(self.tiles.k[0], self.site)
        return walk.first, walk.count

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

    def _packed(self, side: Side, into: str, lines: int, count: str, kc: str) -> str:
        """Write the evaluation of a side into an array `into` of so many `lines` of block_k elements; gives its name."""
        e = self.e
        e.writer.write(f"_Alignas(64) {self.kind} {into}[{lines * self.bk}];")
        method = self.method
        if side.words and "decode" == (method.left if into == "left" else method.right).copy:
            with e.writer.open(*e.counted(side.line, count)):
                self._decode(side, side.line, f"({into} + {side.line.name} * {self.bk})", kc)
            return into

        def write(here: Point, at: Expr) -> None:
            text = convert(e.body(side.factor, here), side.value.dtype, self.dtype)
            place = e.index(add(mul(side.line, idx(self.bk)), at))
            e.writer.write(f"{into}[{bare(place)}] = {bare(text)};")

        with e.writer.open(*e.counted(side.line, count)):
            e.along(side.depth, kc, side.start, side.at, [side.factor], write)
        return into

    def _decode(self, side: Side, line: Expr, into: str, kc: str) -> None:
        """Write the evaluation of a line of codes into `into`."""
        assert side.words is not None
        at = {side.depth.name: Axis(POSITION, self.bk), side.line.name: line}
        write_decoded(self.e, substitute(side.value, at), kc, side.words, (into, self.dtype))

    def _dot(self, left: Side, right: Side, mc: str, nc: str, kc: str, first: str) -> None:
        e = self.e
        a_block = b_block = ""
        if self.method.left.copy != "direct":
            a_block = self._packed(left, "left", self.rows, mc, kc)
        if self.method.right.copy != "direct":
            b_block = self._packed(right, "right", self.columns, nc, kc)
        a = SUFFIX[self.dtype] if a_block else STORAGE_NAME[left.value.dtype]
        b = SUFFIX[self.dtype] if b_block else STORAGE_NAME[right.value.dtype]
        template = "dot_bytes" if self.dtype.is_int else "dot"
        name = e.kernel(template, self.bm, self.bn, self.dtype, {"A": a, "B": b})
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
        a_block, how, walk = "", "step", "1"
        if self.method.left.copy != "direct":
            a_block = self._packed(left, "left", self.rows, mc, kc)
        elif left.along_depth is not None:
            walk = str(left.along_depth)
        else:
            how, walk = "table", self._table(left, kc)
        direct = self.method.right.copy == "direct"
        b = STORAGE_NAME[right.value.dtype] if direct else SUFFIX[self.dtype]
        vectors = self.bn * self.dtype.itemsize // e.target.vector_bytes
        name = e.kernel("outer", self.bm, vectors, self.dtype, {"B": b, "A": how})
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
                    f"{name}(a, {walk}, {panel}, {b_step}, {kc}, {at}, {self.columns}, {first});"
                )

    def _table(self, left: Side, kc: str) -> str:
        """Write where the elements of a line lie, from its first one on, into an array; gives its name."""
        e = self.e
        e.writer.write(f"idx steps[{self.bk}];")
        with e.writer.open(*e.counted(left.depth, kc)):
            place = bare(e.index(left.steps))
            e.writer.write(f"steps[{left.depth.name}] = {place};")
        return "steps"

    def _panel(self, right: Side, n0: Expr, nc: str, kc: str) -> None:
        """Write the taking in of block_n columns from `nb` on as `right`[depth][column - nb]."""
        e = self.e
        if self.method.right.copy == "decode":
            e.writer.write(f"_Alignas(64) {self.kind} decoded[{self.bn * self.bk}];")
            e.writer.write(f"const {self.kind}* lines[{self.bn}];")
            with e.writer.open(f"for (idx i = 0; i < {self.bn}; ++i)", ["i", right.line.name]):
                name = right.line.name
                e.writer.write(f"const idx {name} = mt_min_idx(nb + i, {nc} - 1);")
                e.writer.write(f"lines[i] = decoded + i * {self.bk};")
                self._decode(right, right.line, f"(decoded + i * {self.bk})", kc)
            suffix = SUFFIX[self.dtype]
            e.writer.write(f"mt_pack_transposed_{suffix}(lines, {self.bn}, {kc}, right);")
            return
        if self.method.right.major == "k":
            self._lines(right, "lines", "", "nb", nc, self.bn)
            e.writer.write(
                f"mt_pack_transposed_{STORAGE_NAME[right.value.dtype]}(lines, {self.bn}, {kc}, right);"
            )
            return
        j, nb = Axis("j", self.bn), Axis("nb", self.columns)
        axes = [self.c.axes[p] for p in self.n.dim.axes]
        start = add(self.n.origin, add(n0, nb))
        depth = unflatten(add(right.start, right.depth), self.tiles.k)
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
        axes = [self.c.axes[p] for p in self.n.dim.axes]
        origin = add(self.n.origin, n0)
        finished, held = of_columns(site, frozenset(axes))
        for c in held:
            self._hold(c, column, nc, origin)
        with e.writer.open(*e.counted(row, mc)):
            across = moved(site, self.m, add(m0, row))

            def point(local: Expr) -> Point:
                return {**across, **unflatten(add(origin, local), axes)}

            def write(here: Point, local: Expr) -> None:
                for c in held:
                    value = f"{c.out.name}[{bare(e.index(local))}]"
                    e.writer.define(value)
                    e.hold(c.out.name, value)
                at = e.index(add(mul(row, idx(self.columns)), local))
                e.finish(finished, here, f"sums[{bare(at)}]", self.dtype)

            e.along(column, nc, origin, point, e.later_uses(site), write)

    def _hold(self, c: Compute, column: Axis, nc: str, origin: Expr) -> None:
        """Write a value of each column into an array."""
        e = self.e
        axes = [self.c.axes[p] for p in self.n.dim.axes]
        fixed = at_start(self.site, self.m).point
        e.writer.write(f"{e.values[c.out.dtype]} {c.out.name}[{self.columns}];")

        def point(local: Expr) -> Point:
            return {**fixed, **unflatten(add(origin, local), axes)}

        def write(here: Point, local: Expr) -> None:
            text = bare(e.body(c.body, here))
            e.writer.write(f"{c.out.name}[{bare(e.index(local))}] = {text};")

        e.along(column, nc, origin, point, [c.body], write)
