"""Matrix products on the CPU: register tiles over panels that stay in the cache (Goto and van de Geijn 2008).

A task's region is cut into rectangles of sums that fit the cache; K is cut into chunks of block_k. In a chunk each panel of block_n
columns is packed once, and all rows advance past it in blocks of block_m. At the end the sums of a rectangle are finished, and the
epilogue computed, row by row.
"""

from collections.abc import Callable

from monotile.codegen.loops import Loops
from monotile.codegen.site import Site
from monotile.codegen.spelling import SUFFIX
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, add, idx
from monotile.kernels.matmul.cpu_epilogue import CpuEpilogue
from monotile.kernels.matmul.cpu_subnormals import are_calm, flushed
from monotile.kernels.matmul.cpu_words import write_words
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.matmul.panel_prefetch import PanelPrefetch, panel_prefetch
from monotile.kernels.matmul.tiles import STORAGE_NAME, Side


def write(e: Loops, site: Site) -> None:
    """Writes a step that is a product."""
    method = site.step.method
    assert isinstance(method, Matmul)
    _Product(e, site, method).write()


class _Product(CpuEpilogue):
    """The state of emitting a product."""

    def write(self) -> None:
        e, depth = self.e, self.tiles.depth
        batches = [r for r in self.site.ranges if r is not self.m and r is not self.n]
        size = self.pitch * (self.bm if self.tiles.in_one else self.rows)
        e.writer.write(f"_Alignas(64) {self.kind} sums[{size}];")
        words = self.method.instruction == "words"
        if words:
            e.writer.write("mt_begin_words();")
        with e.over(batches):
            count_m, count_n = e.count(self.m), e.count(self.n)
            with (
                e.blocks("mo", self.m.variable.extent, count_m, self.rows) as (m0, mc),
                e.blocks("no", self.n.variable.extent, count_n, self.columns) as (n0, nc),
            ):
                first_k, depth_text = self._walk()
                self.hold_columns(n0, nc)
                if not depth_text.isdigit():  # a row's bounds may leave nothing
                    clear = f"for (idx i = 0; i < {size}; ++i) sums[i] = 0;"
                    e.writer.write(f"if ({depth_text} <= 0) {{ {clear} }}")
                with (
                    flushed(e, self._flushes and not self._in_turn),
                    e.blocks("ko", depth, depth_text, self.bk) as (chunk, kc),
                ):
                    left, right = self.tiles.sides(e.lines, m0, n0, add(first_k, chunk))
                    first = "true" if chunk == idx(0) else "ko == 0"
                    if self.method.instruction == "dot":
                        self._dot(left, right, mc, nc, kc, first)
                    elif self.method.instruction == "words":
                        write_words(self, (left, right), n0, (mc, nc, kc), first)
                    else:
                        done = self._last(chunk) if self.tiles.at_once else None
                        self._outer((left, right), (m0, n0), (mc, nc, kc), first, done)
                if not self.tiles.at_once:
                    self.finish((m0, n0), (mc, nc), (idx(0), idx(0)))
        if words:
            e.writer.write("mt_end_words();")

    @property
    def _flushes(self) -> bool:
        return self.dtype is DType.F32 and self.method.instruction != "words"

    @property
    def _in_turn(self) -> bool:
        """Whether flushing of subnormals is turned on and off for each tile."""
        return not are_calm(self.finished, followers=self.tiles.at_once)

    def _walk(self) -> tuple[Expr, str]:
        """The first live value of K, and the text of the number of live ones."""
        if len(self.tiles.k) != 1:
            return idx(0), str(self.tiles.depth)
        walk = self.e.walked(self.tiles.k[0], self.site)
        return walk.first, walk.count

    def _dot(self, left: Side, right: Side, mc: str, nc: str, kc: str, first: str) -> None:
        e = self.e
        a_block = b_block = ""
        if self.method.left.copy != "direct":
            a_block = self.packed(left, "left", self.rows, mc, kc)
        if self.method.right.copy != "direct":
            b_block = self.packed(right, "right", self.columns, nc, kc)
        a = SUFFIX[self.dtype] if a_block else STORAGE_NAME[left.value.dtype]
        b = SUFFIX[self.dtype] if b_block else STORAGE_NAME[right.value.dtype]
        template = "dot_bytes" if self.dtype.is_int else "dot"
        name = e.kernel(template, self.bm, self.bn, self.dtype, {"A": a, "B": b})
        with e.writer.open(f"for (idx nb = 0; nb < {nc}; nb += {self.bn})", ["nb"]):
            self.lines(right, "b", b_block, "nb", nc, self.bn)
            with e.writer.open(f"for (idx mb = 0; mb < {mc}; mb += {self.bm})", ["mb"]):
                self.lines(left, "a", a_block, "mb", mc, self.bm)
                at = f"sums + mb * {self.columns} + nb"
                with flushed(e, self._flushes and self._in_turn):
                    e.writer.write(f"{name}(a, b, {kc}, {at}, {self.columns}, {first});")

    def _last(self, chunk: Expr) -> str:
        """Head of a block that runs only after the last chunk of k."""
        chunks = -(-self.tiles.depth // self.bk)
        return "" if chunk == idx(0) else f"if (ko == {chunks - 1})"

    def _outer(
        self,
        sides: tuple[Side, Side],
        starts: tuple[Expr, Expr],
        counts: tuple[str, str, str],
        first: str,
        done: str | None,
    ) -> None:
        """done: head of the block in which a block's sums are complete, if its epilogue follows at once."""
        e, (left, right), (m0, n0), (mc, nc, kc) = self.e, sides, starts, counts
        a_block, how, walk = self._left(left, mc, kc)
        in_runs = how == "runs"
        direct = self.method.right.copy in ("direct", "panels")
        b = STORAGE_NAME[right.value.dtype] if direct else SUFFIX[self.dtype]
        vectors = self.bn * self.dtype.itemsize // e.target.vector_bytes
        apart = self.method.ahead("block", "right")
        ahead = panel_prefetch(self.tiles, right, self.method.right.copy) if apart else None
        given = {"B": b, "A": how, "APART": str(apart), "RUN": str(ahead.run if ahead else 0)}
        name, tall = self._tile(
            mc, lambda rows: e.kernel("outer", rows, vectors, self.dtype, given)
        )
        if not direct:
            e.writer.write(f"_Alignas(64) {self.kind} right[{self.bn * self.bk}];")
        with e.writer.open(f"for (idx nb = 0; nb < {nc}; nb += {self.bn})", ["nb"]):
            panel, b_step = "right", self.bn
            if self.method.right.copy == "panels":
                panel = self.panel_at(right, n0)
            elif direct:
                panel = self.in_place(right, Axis("nb", self.columns))
                b_step = right.along_depth or 0
            else:
                self.panel(right, n0, nc, kc)
            columns = str(self.bn)
            if not nc.isdigit() or int(nc) % self.bn:
                columns = e.short(f"mt_min_idx({self.bn}, {nc} - nb)")
            later = "NULL, 0"
            if ahead is not None:
                here = panel if direct else self.in_place(right, Axis("nb", self.columns))
                text = f"(const char*)({here} + {self._to_next(ahead, nc)})"
                e.writer.write(f"const char* const next = {text};")
                turn = f"mt_min_idx(mb / {tall}, {ahead.blocks(apart) - 1})"
                later = f"next + {turn} * (ptrdiff_t){ahead.step(apart)}, {ahead.jump}"
            with e.writer.open(f"for (idx mb = 0; mb < {mc}; mb += {tall})", ["mb"]):
                if not in_runs:
                    self.lines(left, "a", a_block, "mb", mc, self.bm)
                a = f"runs[mb / {self.bm}][0]" if in_runs else "a"
                rows = e.short(f"mt_min_idx({tall}, {mc} - mb)") if done is not None else tall
                if done is not None:
                    with e.writer.open(done):
                        self.prefetch((m0, n0), (rows, columns))
                at = "sums" if self.tiles.in_one else f"sums + mb * {self.columns} + nb"
                with flushed(e, self._flushes and self._in_turn):
                    e.writer.write(
                        f"{name}({a}, {walk}, {panel}, {b_step}, {kc}, {at}, {self.pitch}, {first}, {later});"
                    )
                if done is not None:
                    with e.writer.open(done):
                        self.finish((m0, n0), (rows, columns), self.block)

    def _left(self, left: Side, mc: str, kc: str) -> tuple[str, str, str]:
        """Writes the preparation of the left operand. Returns its packed copy, or ""; how a tile loops over it; and the text of that loop's
        arguments."""
        if self.method.left.copy == "runs":
            return "", "runs", self.runs(left, mc, kc)
        if self.method.left.copy != "direct":
            return self.packed(left, "left", self.rows, mc, kc), "step", "1"
        if left.along_depth is not None:
            return "", "step", str(left.along_depth)
        return "", "table", self.table(left, kc)

    def _tile(self, mc: str, of_rows: Callable[[int], str]) -> tuple[str, str]:
        """Texts of the function for a tile, and of its rows. If only the call knows the number of rows, there are as few tiles as possible,
        all of the same height."""
        e, c = self.e, self.c
        if all(c.live_along(c.axes[p]) is None for p in self.m.dim.axes):
            return of_rows(self.bm), str(self.bm)
        names = [of_rows(rows + 1) for rows in range(self.bm)]
        tiles = f"mt_max_idx(({mc} + {self.bm - 1}) / {self.bm}, 1)"
        e.writer.write(f"const idx tiles = {tiles}, tall = ({mc} + tiles - 1) / tiles;")
        e.writer.write(f"static __typeof__({names[-1]})* const as_tall[] = {{{', '.join(names)}}};")
        return "as_tall[mt_max_idx(tall, 1) - 1]", "tall"

    def _to_next(self, ahead: PanelPrefetch, nc: str) -> str:
        """Text of the distance in elements from the panel of column `nb` to the next one: beside it; of the next chunk; or of the next
        columns, from the first chunk on."""
        chunks = -(-self.tiles.depth // self.bk)
        across, several = f"(ptrdiff_t){ahead.across}", self.columns > self.bn
        text = across
        if chunks > 1:
            back = f" - nb / {self.bn} * {across}" if several else ""
            first = f"{across} - ko * (ptrdiff_t){ahead.deep}"
            text = f"(ko + 1 < {chunks} ? {ahead.deep}{back} : {first})"
        return f"(nb + {self.bn} < {nc} ? {across} : {text})" if several and chunks > 1 else text
