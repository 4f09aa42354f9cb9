"""A product whose weights stream through the worker's ring.

The producer warp fills the ring with rows, or parts of them, as many as a slot holds. Threads hold the vectors in registers
(`cuda_dots.py`), or warps multiply tiles on tensor cores (`cuda_mma.py`); or threads have columns, and sum across the rows
(`cuda_columns.py`).
"""

from monotile.codegen.block import READY, BlockEmitter
from monotile.codegen.ring import ring_type
from monotile.codegen.site import Site
from monotile.ir.expr import Axis, Expr, idx, mul
from monotile.kernels.common.cuda_threads import region
from monotile.kernels.gemv import cuda_columns, cuda_dots, cuda_mma
from monotile.kernels.gemv.cuda_decode_operands import copy_sides, load_sides, prefetch_sides
from monotile.kernels.gemv.cuda_rows import write_rows
from monotile.kernels.gemv.cuda_tasks import (
    TaskRows,
    task_rows,
    write_early,
    write_finish,
)
from monotile.kernels.gemv.method import Gemv, GemvColumns, GemvMma, Streamed


def write(e: BlockEmitter, site: Site) -> None:
    """Writes the step for the consumer warps."""
    ring, w, method = e.plan.launch.ring, e.writer, site.step.method
    assert isinstance(method, Streamed)
    assert ring is not None
    rows, vectors = task_rows(site, method)
    w.write(f"{ring_type(ring, e.target)} ring(scratch + {ring.offset});")
    loaded = None if rows.found.looked_up else load_sides(e, rows, region(vectors))
    if isinstance(method, Gemv):
        w.write("const idx ring_lane = threadIdx.x % 32, warp = threadIdx.x / 32;")
        w.define("ring_lane")
        w.write(f"const idx part = warp % {method.parts}, group = warp / {method.parts};")
        w.define("part")
    if e.await_ != READY:
        w.write(f"{e.await_}();")
    if loaded is None:
        w.write("ring.tell(0);")
        loaded = load_sides(e, rows, region(vectors))
    if isinstance(method, Gemv):
        cuda_dots.write_vectors(e, site, rows, vectors)
    early = write_early(e, site, rows, vectors)
    if e.view.stage.handoff == "none":  # else there was a barrier since the scratch was used last
        w.write("mt::block_barrier();")
    if isinstance(method, Gemv):
        w.write(f"float* const sums = (float*)(scratch + {site.step.scratch});")
        cuda_dots.write_chunks(e, rows, region(vectors))
    elif isinstance(method, GemvColumns):
        cuda_columns.write_columns(e, site, rows, vectors)
    else:
        cuda_mma.write_tiles(e, site, rows, vectors, loaded)
    w.write("mt::block_barrier();")
    write_finish(e, site, rows, vectors, early)


def write_supply(e: BlockEmitter, site: Site) -> None:
    """Writes the step for the supplier (producer warp): each lane requests a row of the task, or a part of one, per slot, after the other
    operands of decoding. Rows that the last slot lacks are its last row again."""
    w, method = e.writer, site.step.method
    assert isinstance(method, Streamed)
    rows, vectors = task_rows(site, method)
    if rows.found.looked_up:
        w.write("ring.hear();  // that what says where the rows are is there")
    prefetch_sides(e, rows, region(vectors))
    with w.open(f"for (idx slot = 0; slot < {rows.slots}; ++slot)", ["slot"], fence=True) as block:
        block.pragma = "#pragma unroll 1"
        w.write("ring.await();")
        if isinstance(method, GemvColumns):
            cuda_columns.write_rows(e, rows)
        else:
            column = _column(e, rows, method)
            copy_sides(e, rows, column)
            write_rows(e, rows, column)


def _column(e: BlockEmitter, rows: TaskRows, method: Gemv | GemvMma) -> Expr:
    """The first column of the slot's piece of each row."""
    shared, along = method.row_slots, rows.found.along
    if shared == 1:
        return idx(0)
    e.writer.write(f"const idx piece = slot % {shared};")
    e.writer.define("piece")
    return mul(Axis("piece", shared), idx(along.extent // shared))
