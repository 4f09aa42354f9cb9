"""A reduction step on CUDA, dispatched by its method."""

from monotile.codegen.block import READY, BlockEmitter
from monotile.codegen.site import Site
from monotile.kernels.reduction.cuda_columns import write_columns
from monotile.kernels.reduction.cuda_lanes import write_lanes
from monotile.kernels.reduction.cuda_register_weights import write_weight_prefetch
from monotile.kernels.reduction.cuda_slots import write_slots
from monotile.kernels.reduction.cuda_windows import write_windows
from monotile.kernels.reduction.method import Reduce
from monotile.kernels.reduction.weights import weights_of


def write(e: BlockEmitter, site: Site) -> None:
    """Writes a reduction step, after its operands are available."""
    method = site.step.method
    assert isinstance(method, Reduce)
    if method.by_columns:
        write_columns(e, site, method)
    elif method.at_once:
        write_slots(e, site, method)
    elif method.side_by_side:
        write_windows(e, site, method)
    else:
        if e.await_ != READY:
            e.writer.write(f"{e.await_}();")
        e.held_now = e.prefetched.get(site.step, {})
        write_lanes(e, e.with_pinned(site), method)
        e.held_now = {}


def write_prefetch(e: BlockEmitter, site: Site, number: int) -> None:
    """Writes the prefetch of a step's weights into registers, before the stage's first step."""
    wanted = weights_of(site.step, e.computes, e.weights)
    e.prefetched[site.step] = write_weight_prefetch(e, site, wanted, f"weights_{number}")
