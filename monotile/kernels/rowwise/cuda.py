"""Rows in registers (CUDA): `common/cuda_rows.py` emits the computation of a row."""

from monotile.codegen.block import BlockEmitter
from monotile.codegen.site import Site
from monotile.kernels.common.cuda_asked_rows import Asked, ask_all, ask_first, ask_next, take
from monotile.kernels.common.cuda_rows import each_round, rows_of
from monotile.kernels.rowwise.method import HoldRows


def write(e: BlockEmitter, site: Site) -> None:
    """Groups of lanes, each with a row at a time."""
    method, await_ = site.step.method, e.await_
    assert isinstance(method, HoldRows)
    row = site.ranges[0] if method.rows else None
    step = rows_of(e, site, method, row, e.plan.launch.threads)
    w, lanes = e.writer, method.lanes
    with w.open("", fence=True):
        w.write(f"const idx group_lane = threadIdx.x % {lanes}, group = threadIdx.x / {lanes};")
        w.define("group_lane")
        w.define("group")
        ahead = ask_first(step, f"{await_}();") if step.rounds > 1 else Asked()
        with each_round(step):
            if step.rounds > 1:
                ask_next(step, ahead.by_round)
            else:
                ahead = ask_all(step, f"{await_}();")
            take(step, ahead.once, "early")
            step.evaluate()
            if step.rounds > 1 and lanes > e.target.warp:
                w.write("mt::block_barrier();")
    e.forget()
