"""Word-panel products on the CPU (`words.py`): packing of the right operand's panels, and the calls of the tile kernels."""

import math
from collections.abc import Callable

from monotile.analysis.affine import flattened
from monotile.analysis.words import STEP_BYTES
from monotile.codegen.base import STORAGE
from monotile.codegen.lines import stride
from monotile.codegen.site import Point
from monotile.codegen.spelling import bare
from monotile.ir.expr import Axis, Expr, Load, idx, substitute
from monotile.kernels.matmul.cpu_packing import Packing
from monotile.kernels.matmul.tiles import STORAGE_NAME, Side

Panel = Callable[[], None]  # writes the packing of `right` from column `nb` on


def write_words(
    p: Packing, sides: tuple[Side, Side], n0: Expr, counts: tuple[str, str, str], first: str
) -> None:
    """Writes the products of a chunk of k. counts: texts of the numbers of rows, columns and values of k. first: text of whether it is the
    first chunk of its sums."""
    e, (left, right), (mc, nc, kc) = p.e, sides, counts
    a, pitch = "", str(p.bk)
    if p.method.left.copy == "direct":
        pitch = str(left.along_line)
    else:
        a = _lines_of_runs(p, left, mc, kc) or p.packed(left, "left", p.rows, mc, kc)
    stored, other = (STORAGE_NAME[x] for x in p.tiles.elements)
    name = e.kernel("word_tile", p.bm, p.bn, p.dtype, {"A": stored, "B": other})
    ready = p.method.right.copy == "panels"
    take_in = None if ready else _panel_of(p, right, n0, nc, kc)
    with e.writer.open(f"for (idx nb = 0; nb < {nc}; nb += {p.bn})", ["nb"]):
        if take_in is not None:
            take_in()
        panel = p.panel_at(right, n0) if ready else "right"
        with e.writer.open(f"for (idx mb = 0; mb < {mc}; mb += {p.bm})", ["mb"]):
            line = f"{a} + mb * {p.bk}" if a else p.in_place(left, Axis("mb", p.rows))
            lines, at = f"mt_min_idx({p.bm}, {mc} - mb)", f"sums + mb * {p.columns} + nb"
            given = f"{line}, {pitch}, {lines}, {panel}, {kc}, {at}, {p.columns}, {first}"
            e.writer.write(f"{name}({given});")


def _lines_of_runs(p: Packing, left: Side, mc: str, kc: str) -> str:
    """Writes the copy of a chunk's lines from contiguous runs. Returns its name; "" if there are no such runs."""
    load, e = left.factor, p.e
    run = _run(p, load) if isinstance(load, Load) and left.apart else 1
    if run == 1 or load.dtype is not p.element:
        return ""
    e.writer.write(f"_Alignas(64) {STORAGE[p.element]} left[{p.rows * p.bk}];")
    steps = p.table(left, kc)
    with e.writer.open(*e.counted(left.line, mc)):
        given = f"{p.in_place(left, left.line)}, {steps}, {run}, {kc}"
        name = f"mt_line_of_runs_{STORAGE_NAME[p.element]}"
        e.writer.write(f"{name}({given}, left + {left.line.name} * {p.bk});")
    return "left"


def _run(p: Packing, load: Load) -> int:
    """The length of contiguous runs along k, whichever chunk begins there."""
    where, flat = flattened(p.e.lines.offset(load), p.tiles.k)
    whole = p.tiles.depth <= p.bk or p.bk % flat.extent == 0
    run = flat.extent if whole else math.gcd(flat.extent, p.bk)
    return run if where.coefficient(flat) == 1 else 1


def _panel_of(p: Packing, right: Side, n0: Expr, nc: str, kc: str) -> Panel:
    """The packing function of a panel, after declaring its arguments: from lines along k; from columns that are contiguous at each k, all
    of them or the contiguous parts of an image's windows; or from an operand that is computed first."""
    e, name = p.e, STORAGE_NAME[p.tiles.elements[1]]
    step = STEP_BYTES // p.element.itemsize
    values = p.bn * -(-p.bk // step) * step
    e.writer.write(f"_Alignas(64) {STORAGE[p.element]} right[{values}];")
    stored = isinstance(right.value, Load) and right.value.dtype.itemsize == p.element.itemsize

    codes = p.method.right.copy == "decode"

    def of_lines() -> None:
        if codes:
            p.decoded_lines(right, nc, kc)
        else:
            p.lines(right, "lines", "", "nb", nc, p.bn)
        given = f"(const void* const*)lines, {kc} * {p.element.itemsize}, right"
        e.writer.write(f"mt_words_of_lines({given});")

    def of_rows() -> None:
        taken = f"mt_min_idx({p.bn}, {nc} - nb)"
        rows = f"{p.in_place(right, Axis('nb', p.columns))}, {right.along_depth}"
        e.writer.write(f"mt_words_of_{name}({rows}, {taken}, {kc}, (uint32_t*)right);")

    def computed() -> None:
        p.panel(right, n0, nc, kc, "columns")
        e.writer.write(f"mt_words_of_{name}(columns, {p.bn}, {p.bn}, {kc}, (uint32_t*)right);")

    if codes or (stored and right.along_depth == 1):
        return of_lines
    if stored and right.along_line == 1 and right.along_depth is not None:
        return of_rows
    if stored and right.apart and (windows := _of_windows(p, right, n0, nc, kc)) is not None:
        return windows
    e.writer.write(f"_Alignas(64) {STORAGE[p.element]} columns[{values}];")
    return computed


def _of_windows(p: Packing, right: Side, n0: Expr, nc: str, kc: str) -> Panel | None:
    """The packing of columns that are windows of an image, in the parts that are contiguous in a row of it, by a table of the offsets of a
    window's elements; None if they are not."""
    e, use, j = p.e, [right.factor], Axis("j", p.bn)
    start, point = p.columns_at(n0, right.start)

    def load(here: Point) -> Load:
        x = substitute(right.factor, dict(here))
        assert isinstance(x, Load)
        return x

    along, there = e.lines.straightened(j, start, point, use)
    if stride(e.lines.offset(load(there)), along) != 1:
        return None
    steps, name = p.table(right, kc), STORAGE_NAME[p.tiles.elements[1]]

    def write() -> None:
        taken = e.short(f"mt_min_idx({p.bn}, {nc} - nb)")
        with e.rows(j, taken, start, point, use) as row:
            low = idx(0) if row.low == "0" else Axis(row.low, row.x.extent)
            column = substitute(row.at, {row.x.name: low})
            pointer, offset = e.element(load(point(column)))
            count = row.high if row.low == "0" else f"{row.high} - {row.low}"
            given = f"{pointer} + {bare(offset)}, {steps}, {bare(e.index(column))}, {count}, {kc}"
            e.writer.write(f"mt_words_of_windows_{name}({given}, (uint32_t*)right);")

    return write
