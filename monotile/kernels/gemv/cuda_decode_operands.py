"""Operands of decoding other than the codes ("sides": scales and zeros; and tables). The supplier loads them with the codes; or it
prefetches them into the last-level cache, and threads copy them on chip through registers."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from monotile.analysis.affine import contiguous_run, offset
from monotile.codegen.base import STORAGE
from monotile.codegen.block import BlockEmitter
from monotile.codegen.site import Range
from monotile.ir.expr import Axis, Expr, Load, add, idx, mul
from monotile.kernels.common.cuda_threads import inside, placed, region, spread
from monotile.kernels.gemv import tiles
from monotile.kernels.gemv.cuda_tasks import TaskRows, alone, row_of_slot
from monotile.kernels.gemv.method import GemvMma
from monotile.plan.launch import Ring

WIDEST = 16  # bytes of one access


@dataclass(frozen=True, slots=True)
class CopiedOperand:
    """A side of the task's rows, or a table that all rows share, which threads copy on chip: `packs` packs of `width` values per row. load:
    a value, by the axis `value`. ranges: of the rows that have their own values."""

    load: Load
    array: tiles.SideArray
    width: int
    packs: int
    ranges: tuple[Range, ...]

    @property
    def total(self) -> int:
        """Packs of the task."""
        return region(self.ranges) * self.packs

    def rounds(self, threads: int) -> int:
        """Iterations in which `threads` threads copy a pack each."""
        return -(-self.total // threads)


def _copied_operands(rows: TaskRows, vectors: int) -> Iterator[CopiedOperand]:
    method, codes = rows.method, rows.found.codes
    if codes is None or not isinstance(method, GemvMma):
        return
    layout = tiles.layout(rows.found, method, rows.count, vectors)
    for side, array in zip(codes.sides, layout.sides, strict=True):
        if not array.in_slot:
            load, value = tiles.by_value(side, rows.found.along)
            width = contiguous_run(offset(load), value, WIDEST // array.dtype.itemsize)
            yield CopiedOperand(load, array, width, array.count // width, rows.ranges)
    for table, array in zip(codes.tables, layout.tables, strict=True):
        load = Load(table.tensor, (*table.index[:-1], Axis("value", array.count)))
        yield CopiedOperand(load, array, 1, array.count, ())


def load_sides(e: BlockEmitter, rows: TaskRows, vectors: int) -> dict[str, CopiedOperand]:
    """Issues all loads; they depend on no other stage. Returns the register arrays of their results."""
    w, threads = e.writer, e.plan.launch.threads
    loaded = {w.fresh("side"): c for c in _copied_operands(rows, vectors)}
    for name, c in loaded.items():
        kind = f"mt::Pack<{STORAGE[c.array.dtype]}, {c.width}>"
        w.write(f"{kind} {name}[{c.rounds(threads)}];")
        with _each(e, c, threads, "#pragma unroll"), _address(e, rows, c) as address:
            w.write(f"{name}[j] = mt::load_constant<{c.width}>({address});")
    return loaded


def store_sides(e: BlockEmitter, loaded: Mapping[str, CopiedOperand]) -> None:
    """Stores the loaded sides on chip."""
    for name, c in loaded.items():
        with _each(e, c, e.plan.launch.threads, "#pragma unroll"):
            size = c.width * c.array.dtype.itemsize
            to = f"own + {c.array.offset} + row * {c.array.pitch} + pack * {size}"
            e.writer.write(f"mt::store_words({to}, {name}[j]);")


def prefetch_sides(e: BlockEmitter, rows: TaskRows, vectors: int) -> None:
    """For the supplier, stages ahead: prefetches the sides into the last-level cache."""
    for c in _copied_operands(rows, vectors):
        with _each(e, c, Ring.THREADS, "#pragma unroll 1"), _address(e, rows, c) as address:
            e.writer.write(f"mt::ptx::request({address});")


def copy_sides(e: BlockEmitter, rows: TaskRows, column: Expr) -> None:
    """For the supplier: copies the sides that come with a slot of codes. column: the first one of its piece."""
    w, method, codes = e.writer, rows.method, rows.found.codes
    if codes is None or not isinstance(method, GemvMma) or not any(method.sides):
        return
    for k, (side, brought) in enumerate(zip(codes.sides, method.sides, strict=True)):
        if brought is None:
            continue
        vector, total = brought.vector, method.slot_rows * brought.vectors
        lane = f"number = threadIdx.x % {Ring.THREADS}"
        with w.open(
            f"for (idx {lane}; number < {total}; number += {Ring.THREADS})", ["number"], fence=True
        ):
            w.write(
                f"const idx line = number / {brought.vectors}, pack = number % {brought.vectors};"
            )
            w.define("line")
            w.define("pack")
            at, along = row_of_slot(e, rows, "line"), rows.found.along.name
            to = f"{method.side_at(k)} + line * {brought.pitch} + pack * {vector}"
            if brought.aligned:
                columns = max(side.run, 1) * vector // side.load.dtype.itemsize
                own = add(column, mul(Axis("pack", brought.vectors), idx(columns)))
                w.write(
                    f"ring.bring<{vector}>({e.address_of(side.load, at | {along: own})}, {to});"
                )
            else:
                first = e.address_of(side.load, at | {along: column})
                w.write(f"ring.bring<{vector}>({first}, {brought.nbytes}, pack, {to});")
    w.write("ring.brought();")


@contextmanager
def _each(e: BlockEmitter, c: CopiedOperand, threads: int, pragma: str) -> Generator[None]:
    """A loop over the packs of `threads` threads, where `row` and `pack` are those of a thread's j-th pack."""
    w = e.writer
    with ExitStack() as stack:
        head = f"for (idx j = 0; j < {c.rounds(threads)}; ++j)"
        stack.enter_context(w.open(head, ["j"], fence=True)).pragma = pragma
        w.write(f"const idx number = j * {threads} + threadIdx.x % {threads};")
        stack.enter_context(w.open(f"if (number < {c.total})", fence=True))
        w.write(f"const idx row = number / {c.packs}, pack = number % {c.packs};")
        w.define("row")
        w.define("pack")
        yield


@contextmanager
def _address(e: BlockEmitter, rows: TaskRows, c: CopiedOperand) -> Generator[str]:
    """The address of the pack, within a condition that its row exists."""
    where = spread(Axis("row", region(c.ranges)), c.ranges)
    at = placed(rows.point, alone(rows) | where) | {
        "value": mul(Axis("pack", c.packs), idx(c.width))
    }
    address = e.address_of(c.load, at)
    with inside(e, c.ranges, where):
        yield address
