"""Rows in registers (CUDA): `common/cuda_rows.py` emits the computation of a row."""

from monotile.codegen.block import BlockEmitter
from monotile.codegen.site import Site
from monotile.kernels.common.cuda_prefetch_rows import (
    Prefetched,
    prefetch_first_rows,
    prefetch_next_rows,
    prefetch_row,
    take,
)
from monotile.kernels.common.cuda_rows import each_round, rows_of
from monotile.kernels.rowwise.method import HoldRows


def write(e: BlockEmitter, site: Site) -> None:
    """Groups of lanes, each of which computes one row at a time."""
    method, await_ = site.step.method, e.await_
    assert isinstance(method, HoldRows)
    row = site.ranges[0] if method.rows else None
    step = rows_of(e, site, method, row, e.plan.launch.threads)
    w, lanes = e.writer, method.lanes
    with w.open("", fence=True):
        w.write(f"const idx group_lane = threadIdx.x % {lanes}, group = threadIdx.x / {lanes};")
        w.define("group_lane")
        w.define("group")
        ahead = prefetch_first_rows(step, f"{await_}();") if step.rounds > 1 else Prefetched()
        with each_round(step):
            if step.rounds > 1:
                prefetch_next_rows(step, ahead.by_round)
            else:
                ahead = prefetch_row(step, f"{await_}();")
            take(step, ahead.once, "early")
            step.evaluate()
            if step.rounds > 1 and lanes > e.target.warp:
                w.write("mt::block_barrier();")
    e.forget()
