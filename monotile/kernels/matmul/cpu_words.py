"""Products of words on the CPU (`words.py`): the right operand's panels, and the calls of the tiles."""

from collections.abc import Callable

from monotile.codegen.base import STORAGE
from monotile.codegen.lines import stride
from monotile.codegen.site import Point, at_start, unflatten
from monotile.codegen.spelling import bare
from monotile.ir.expr import Axis, Expr, Load, add, idx, substitute
from monotile.kernels.matmul.cpu_packing import Packing
from monotile.kernels.matmul.tiles import STORAGE_NAME, Side
from monotile.kernels.matmul.words import STEP_BYTES

Panel = Callable[[], None]  # writes the packing of `right` from column `nb` on


def write_words(
    p: Packing, sides: tuple[Side, Side], n0: Expr, counts: tuple[str, str, str], first: str
) -> None:
    """Write the products of a chunk of k. counts: texts of how many rows, columns and values of k it has. first: text of whether it is the
    first chunk of its sums."""
    e, (left, right), (mc, nc, kc) = p.e, sides, counts
    a, pitch = "", str(p.bk)
    if p.method.left.copy == "direct":
        pitch = str(left.along_line)
    else:
        a = p.packed(left, "left", p.rows, mc, kc)
    stored, other = (STORAGE_NAME[x] for x in p.tiles.elements)
    name = e.kernel("word_tile", p.bm, p.bn, p.dtype, {"A": stored, "B": other})
    panel = _panel_of(p, right, n0, nc, kc)
    with e.writer.open(f"for (idx nb = 0; nb < {nc}; nb += {p.bn})", ["nb"]):
        panel()
        with e.writer.open(f"for (idx mb = 0; mb < {mc}; mb += {p.bm})", ["mb"]):
            line = f"{a} + mb * {p.bk}" if a else p.in_place(left, Axis("mb", p.rows))
            lines, at = f"mt_min_idx({p.bm}, {mc} - mb)", f"sums + mb * {p.columns} + nb"
            given = f"{line}, {pitch}, {lines}, right, {kc}, {at}, {p.columns}, {first}"
            e.writer.write(f"{name}({given});")


def _panel_of(p: Packing, right: Side, n0: Expr, nc: str, kc: str) -> Panel:
    """What packs a panel, once what it needs is declared: of lines along k, of columns side by side at each k, all of them or as far as windows of an
    image are, or of what is computed first."""
    e, name = p.e, STORAGE_NAME[p.tiles.elements[1]]
    step = STEP_BYTES // p.element.itemsize
    values = p.bn * -(-p.bk // step) * step
    e.writer.write(f"_Alignas(64) {STORAGE[p.element]} right[{values}];")
    stored = isinstance(right.value, Load) and right.value.dtype.itemsize == p.element.itemsize

    def of_lines() -> None:
        p.lines(right, "lines", "", "nb", nc, p.bn)
        given = f"(const void* const*)lines, {kc} * {p.element.itemsize}, right"
        e.writer.write(f"mt_words_of_lines({given});")

    def of_codes() -> None:
        p.decoded_lines(right, nc, kc)
        given = f"(const void* const*)lines, {kc} * {p.element.itemsize}, right"
        e.writer.write(f"mt_words_of_lines({given});")

    def of_rows() -> None:
        taken = f"mt_min_idx({p.bn}, {nc} - nb)"
        rows = f"{p.in_place(right, Axis('nb', p.columns))}, {right.along_depth}"
        e.writer.write(f"mt_words_of_{name}({rows}, {taken}, {kc}, (uint32_t*)right);")

    def computed() -> None:
        p.panel(right, n0, nc, kc, "columns")
        e.writer.write(f"mt_words_of_{name}(columns, {p.bn}, {p.bn}, {kc}, (uint32_t*)right);")

    if p.method.right.copy == "decode":
        return of_codes
    if stored and right.along_depth == 1:
        return of_lines
    if stored and right.along_line == 1 and right.along_depth is not None:
        return of_rows
    windows = _Windows(p, right, n0, nc, kc)
    if stored and right.apart and windows.in_runs:
        p.table(right, kc)
        return lambda: windows.write(name)
    e.writer.write(f"_Alignas(64) {STORAGE[p.element]} columns[{values}];")
    return computed


class _Windows:
    """A panel whose columns are windows of an image that lie side by side, row by row of the image; `steps` is a table of where their elements lie."""

    def __init__(self, p: Packing, right: Side, n0: Expr, nc: str, kc: str) -> None:
        self.p, self.right, self.nc, self.kc = p, right, nc, kc
        self.j = Axis("j", p.bn)
        self.start = add(p.n.origin, add(n0, Axis("nb", p.columns)))

    def point(self, local: Expr) -> Point:
        """All axes at a column, and the first value of k of the chunk."""
        p = self.p
        axes = [p.c.axes[q] for q in p.n.dim.axes]
        first = unflatten(self.right.start, p.tiles.k)
        return {
            **at_start(p.site, p.m).point,
            **unflatten(add(self.start, local), axes),
            **first,
        }

    def _load(self, here: Point) -> Load:
        x = substitute(self.right.factor, dict(here))
        assert isinstance(x, Load)
        return x

    @property
    def in_runs(self) -> bool:
        """Whether columns lie side by side for a while."""
        lines, use = self.p.e.lines, [self.right.factor]
        x, here = lines.straightened(self.j, self.start, self.point, use)
        return stride(lines.offset(self._load(here)), x) == 1

    def write(self, name: str) -> None:
        e, p = self.p.e, self.p
        taken = e.short(f"mt_min_idx({p.bn}, {self.nc} - nb)")
        with e.rows(self.j, taken, self.start, self.point, [self.right.factor]) as row:
            low = idx(0) if row.low == "0" else Axis(row.low, row.x.extent)
            column = substitute(row.at, {row.x.name: low})
            pointer, offset = e.element(self._load(self.point(column)))
            place = bare(e.index(column))
            count = row.high if row.low == "0" else f"{row.high} - {row.low}"
            given = f"{pointer} + {bare(offset)}, steps, {place}, {count}, {self.kc}"
            e.writer.write(f"mt_words_of_windows_{name}({given}, (uint32_t*)right);")
