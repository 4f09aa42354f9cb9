"""Packing of a product's operands on the CPU (`Operand.copy`)."""

from collections.abc import Callable

from monotile.analysis.masked import masked
from monotile.codegen.base import STORAGE
from monotile.codegen.guards import stretch_of
from monotile.codegen.loops import Loops, Row
from monotile.codegen.site import Point, Site, at_start, unflatten
from monotile.codegen.spelling import SUFFIX, bare, convert
from monotile.errors import InternalError
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Load, add, idx, loads, mul, substitute
from monotile.ir.program import Compute
from monotile.kernels.common.cpu_decode import POSITION, write_decoded
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.matmul.panels import matrices
from monotile.kernels.matmul.tiles import COMPUTED, STORAGE_NAME, Side, tiles_of
from monotile.plan.places import Pointer


class Packing:
    """The state of packing for one contraction."""

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
        # Of what is packed.
        self.element = self.tiles.element if method.instruction == "words" else self.dtype

    def in_place(self, side: Side, line: Axis) -> str:
        """Text of the address of a line of the operand at depth 0, if `along_depth` is known."""
        start = substitute(side.value, {side.depth.name: idx(0), side.line.name: line})
        assert isinstance(start, Load)
        pointer, offset = self.e.element(start)
        return f"{pointer} + {bare(offset)}"

    def lines(self, side: Side, names: str, block: str, start: str, count: str, size: int) -> None:
        """Writes an array `names` of pointers to the lines start, ..., start + size - 1, clamped to the last of `count`. block: the packed
        copy to point into, or "" for memory itself."""
        e = self.e
        kind = STORAGE[self.element if block else side.load.dtype]
        e.writer.write(f"const {kind}* {names}[{size}];")
        with e.writer.open(f"for (idx i = 0; i < {size}; ++i)", ["i", side.line.name]):
            last = f"mt_min_idx({start} + i, {count} - 1)"
            e.writer.write(f"const idx {side.line.name} = {last};")
            text = (
                f"{block} + {side.line.name} * {self.bk}"
                if block
                else self.in_place(side, side.line)
            )
            e.writer.write(f"{names}[i] = {text};")

    def packed(self, side: Side, into: str, lines: int, count: str, kc: str) -> str:
        """Writes the evaluation of an operand into an array `into` of `lines` lines of block_k elements. Returns its name."""
        e = self.e
        e.writer.write(f"_Alignas(64) {STORAGE[self.element]} {into}[{lines * self.bk}];")
        method = self.method
        if side.words and "decode" == (method.left if into == "left" else method.right).copy:
            with e.writer.open(*e.counted(side.line, count)):
                self._decode(side, side.line, f"({into} + {side.line.name} * {self.bk})", kc)
            return into

        def write(here: Point, at: Expr) -> None:
            self._put(side, here, into, add(mul(side.line, idx(self.bk)), at))

        with e.writer.open(*e.counted(side.line, count)):
            e.along(side.depth, kc, side.start, side.at, [side.factor], write)
        return into

    def _put(self, side: Side, here: Point, into: str, at: Expr) -> None:
        """Writes the store of an operand's value as packed element number `at`."""
        text = convert(self.e.body(side.factor, here), side.value.dtype, self.element)
        place = self.e.index(at)
        if self.element is DType.BF16 and masked(side.factor) is not None:  # need not be rounded
            self.e.writer.write(f"mt_keep_bf16({into} + {bare(place)}, {bare(text)});")
        else:
            self.e.writer.write(self.e.store(self.element, into, place, text))

    def _decode(self, side: Side, line: Expr, into: str, kc: str) -> None:
        """Writes the decoding of a line of codes into `into`."""
        assert side.words is not None
        at = {side.depth.name: Axis(POSITION, self.bk), side.line.name: line}
        write_decoded(self.e, substitute(side.value, at), kc, side.words, (into, self.element))

    def table(self, left: Side, kc: str) -> str:
        """Writes an array of the offsets of a line's elements from its first one. Returns its name."""
        e = self.e
        e.writer.write(f"idx steps[{self.bk}];")
        with e.writer.open(*e.counted(left.depth, kc)):
            place = bare(e.index(left.steps))
            e.writer.write(f"steps[{left.depth.name}] = {place};")
        return "steps"

    def runs(self, left: Side, mc: str, kc: str) -> str:
        """Writes an array `runs` of the addresses of the chunk's runs, for each block of rows, run and row. Returns the text of a run's
        length."""
        e, kind, length = self.e, STORAGE[self.dtype], min(left.run, self.bk)
        found = masked(left.factor)
        assert found is not None
        many, blocks = self.bk // length, -(-self.rows // self.bm)
        e.writer.write(f"static const {kind} zeros[{length}];")
        e.writer.write(f"const {kind}* runs[{blocks}][{many}][{self.bm}];")
        run, line = Axis("run", many), left.line.name
        with (
            e.writer.open(f"for (idx mb = 0; mb < {mc}; mb += {self.bm})", ["mb"]),
            e.writer.open(*e.counted(run, f"{kc} / {length}" if many > 1 else "1")),
            e.writer.open(f"for (idx i = 0; i < {self.bm}; ++i)", ["i", line]),
        ):
            e.writer.write(f"const idx {line} = mt_min_idx(mb + i, {mc} - 1);")
            here = left.at(mul(run, idx(length)))
            start = substitute(found.load, dict(here))
            assert isinstance(start, Load)
            pointer, offset = e.element(start)
            inside = bare(e.body(found.cond, here))
            e.writer.write(
                f"runs[mb / {self.bm}][run][i] = {inside} ? {pointer} + {bare(offset)} : zeros;"
            )
        return str(length)

    def decoded_lines(self, right: Side, nc: str, kc: str) -> None:
        """Writes the decoding of block_n columns from `nb` on, and an array `lines` of pointers to them."""
        e, kind, name = self.e, STORAGE[self.element], right.line.name
        e.writer.write(f"_Alignas(64) {kind} decoded[{self.bn * self.bk}];")
        e.writer.write(f"const {kind}* lines[{self.bn}];")
        with e.writer.open(f"for (idx i = 0; i < {self.bn}; ++i)", ["i", name]):
            e.writer.write(f"const idx {name} = mt_min_idx(nb + i, {nc} - 1);")
            e.writer.write(f"lines[i] = decoded + i * {self.bk};")
            self._decode(right, right.line, f"(decoded + i * {self.bk})", kc)

    def columns_at(self, n0: Expr, k: Expr) -> tuple[Expr, Callable[[Expr], Point]]:
        """The position of column `nb` among the anchor's columns, and all axes at a column at an offset from it, with K at `k`."""
        axes = [self.c.axes[p] for p in self.n.dim.axes]
        start = add(self.n.origin, add(n0, Axis("nb", self.columns)))
        fixed = {**at_start(self.site, self.m).point, **unflatten(k, self.tiles.k)}
        return start, lambda local: {**fixed, **unflatten(add(start, local), axes)}

    def panel_at(self, right: Side, n0: Expr) -> str:
        """Text of the address of the panel of column `nb` in the weight's packed copy, at the beginning of the chunk of K."""
        panels = next(p for p in self.e.plan.panels if self.c.out.name in p.anchors)
        _, columns, depth = panels.shape
        start, at = self.columns_at(n0, right.start)
        here, weight, matrix = at(idx(0)), right.factor, idx(0)
        assert isinstance(weight, Load)
        where = self.e.lines.offset(weight)
        axes = matrices(self.site.step, self.c, where)
        for (extent, _), axis in zip(panels.batches, axes, strict=True):
            matrix = add(mul(matrix, idx(extent)), here[axis.name])
        first = mul(add(mul(matrix, idx(columns)), start), idx(depth))
        at_chunk = self.e.index(add(first, mul(right.start, idx(panels.block))))
        index = [substitute(i, dict(here)) for i in weight.index]
        pointer, _ = self.e.address(weight.tensor, index, Pointer(panels.slot))
        return f"{pointer} + {bare(at_chunk)}"

    def panel(self, right: Side, n0: Expr, nc: str, kc: str, into: str = "right") -> None:
        """Writes the packing of block_n columns from `nb` on as `into`[depth][column - nb]."""
        e = self.e
        if self.method.right.copy == "decode":
            self.decoded_lines(right, nc, kc)
            suffix = SUFFIX[self.dtype]
            e.writer.write(f"mt_pack_transposed_{suffix}(lines, {self.bn}, {kc}, right);")
            return
        if self.method.right.major == "k" and into == "right":
            self.lines(right, "lines", "", "nb", nc, self.bn)
            e.writer.write(
                f"mt_pack_transposed_{STORAGE_NAME[right.value.dtype]}(lines, {self.bn}, {kc}, right);"
            )
            return
        j = Axis("j", self.bn)
        start, point = self.columns_at(n0, add(right.start, right.depth))
        taken = e.short(f"mt_min_idx({self.bn}, {nc} - nb)")
        with (
            e.rows(j, taken, start, point, [right.factor]) as row,
            e.writer.open(*e.counted(right.depth, kc)),
        ):
            here = point(row.at)
            if self._copied(right, here, into, row):
                return

            def write() -> None:
                self._put(right, here, into, add(mul(right.depth, idx(self.bn)), row.at))

            e.each(row, [substitute(right.factor, dict(here))], write)

    def _copied(self, right: Side, here: Point, into: str, row: Row) -> bool:
        """Writes the copy of a row of columns, with zeros where a condition does not hold. Returns whether the row is such a copy."""
        e, x = self.e, row.x
        found = masked(substitute(right.factor, dict(here)))
        if self.element is not DType.F32 or found is None or found.load.dtype is not DType.F32:
            return False
        at = add(mul(right.depth, idx(self.bn)), row.at)
        start: dict[str, Expr] = {x.name: idx(0)}
        if any(loads(i) for i in found.load.index) or not e.lines.straight(found.load, x):
            return False
        stretch = stretch_of(found.cond, x, e.facts)
        if e.lines.offset(found.load).coefficient(x) != 1 or stretch is None:
            return False
        guard, rest = stretch
        bounds = [[e.short(bare(e.index(b))) for b in side] for side in (guard.lower, guard.upper)]
        begin = e.extreme("max", [row.low, *bounds[0]])
        end = e.extreme("min", [row.high, *bounds[1]])
        if rest:
            end = f"({' && '.join(e.value(t) for t in rest)}) ? {end} : {begin}"
        first = Load(found.load.tensor, tuple(substitute(i, start) for i in found.load.index))
        pointer, offset = e.element(first)
        to = f"{into} + {bare(e.index(substitute(at, start)))}"
        e.writer.write(
            f"mt_copy_run_f32({to}, {pointer} + {bare(offset)}, {row.low}, {row.high}, {begin}, {end});"
        )
        return True
