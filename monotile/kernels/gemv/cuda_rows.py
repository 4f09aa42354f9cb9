"""The supplier's copies of a slot's rows: a row for each lane, or as many rows at once as memory has one behind the other."""

from dataclasses import dataclass

from monotile.codegen.block import BlockEmitter
from monotile.codegen.site import Range
from monotile.ir.expr import Expr, idx
from monotile.kernels.common.cuda_threads import placed
from monotile.kernels.gemv.cuda_tasks import TaskRows, alone, in_task, row_of_slot, step_in_memory
from monotile.kernels.gemv.method import Gemv, GemvMma


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Blocks of `rows` rows of a whole tile that memory has one behind the other. outer: the outermost of their ranges, `inner` rows each."""

    rows: int
    inner: int
    outer: Range

    def touched(self, count: int) -> int:
        """Blocks that `count` rows may have rows of, from a multiple of `count` on."""
        if self.rows % count == 0:
            return 1
        if count % self.rows == 0:
            return count // self.rows
        return (count + self.rows - 2) // self.rows + 1


def write_rows(e: BlockEmitter, rows: TaskRows, column: Expr) -> None:
    """Requests a slot. column: the first one of its piece."""
    method, w = rows.method, e.writer
    assert isinstance(method, Gemv | GemvMma)
    each, along = method.slot_rows, rows.found.along
    size = rows.found.row_bytes // method.row_slots
    blocks = _blocks(e, rows) if isinstance(method, GemvMma) and method.pieces == 1 else None
    if blocks is not None:
        _write_blocks(e, rows, blocks, each)
        return
    at = row_of_slot(e, rows, f"mt_min_idx(threadIdx.x % 32, {each - 1})") | {along.name: column}
    pitch = size if isinstance(method, Gemv) else method.pitch
    w.write(f"ring.ask<{each}>({e.address_of(rows.found.matrix, at)}, {size}, {pitch});")


def _write_blocks(e: BlockEmitter, rows: TaskRows, blocks: _Blocks, each: int) -> None:
    """Each lane has those of the slot's `each` rows that are in a block."""
    w, count, size = e.writer, blocks.touched(each), rows.found.row_bytes
    begin, end = "first", f"first + {each}"
    w.write(f"const idx first = slot * {each};")
    if count > 1:
        w.write(f"const idx block = first / {blocks.rows} + threadIdx.x % 32;")
        begin = f"threadIdx.x % 32 == 0 ? first : block * {blocks.rows}"
        end = f"mt_min_idx({end}, block * {blocks.rows} + {blocks.rows})"
    w.write(f"const idx begin = {begin}, row = mt_min_idx(begin, {rows.count - 1});")
    w.define("row")
    if blocks.outer.count != str(blocks.outer.variable.extent):
        last = f"({blocks.outer.count}) * {blocks.inner}"
        end = f"mt_min_idx({end}, begin / {blocks.rows} * {blocks.rows} + {last})"
    w.write(f"const idx end = mt_min_idx({end}, {rows.count});")
    at = placed(rows.point, in_task(e, rows, "row")) | {rows.found.along.name: idx(0)}
    address = e.address_of(rows.found.matrix, at)
    nbytes, to = f"mt_max_idx(end - begin, 0) * {size}", f"(begin - first) * {size}"
    w.write(f"ring.ask_blocks<{count}>({address}, {nbytes}, {to});")


def _blocks(e: BlockEmitter, rows: TaskRows) -> _Blocks | None:
    """The largest blocks; None if neighbouring rows lie apart."""
    at = placed(rows.point, alone(rows)) | {rows.found.along.name: idx(0)}
    row = rows.found.row_bytes // rows.found.matrix.dtype.itemsize
    together, found = 1, None
    for r in reversed([r for r in rows.ranges if r.variable.extent > 1]):
        if step_in_memory(e, rows, at, r.variable) != together * row:
            break
        found = _Blocks(together * r.variable.extent, together, r)
        together = found.rows
    return found
