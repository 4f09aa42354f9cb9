"""A reduction step whose threads have several neighbouring outputs each, as the elements of a map: what they read lies side by side."""

import math
from contextlib import ExitStack

from monotile.codegen.base import VALUES, Site
from monotile.codegen.cuda_reduce import COMBINER
from monotile.codegen.cuda_steps import inside, placed, turn
from monotile.codegen.spelling import bare
from monotile.codegen.vector import LANE, VectorEmitter, lane_of
from monotile.errors import InternalError
from monotile.ir.expr import idx
from monotile.ir.program import Compute
from monotile.schedule.plan import Map, Reduce

MOST_STRAIGHT = 32  # terms in straight line
AT_ONCE = 8  # of more, whose loads are on their way together


def write_side_by_side(e: VectorEmitter, site: Site, method: Reduce) -> None:
    anchor = site.anchor
    if not isinstance(anchor, Compute) or anchor.combiner is None:
        raise InternalError(f"step {site.step.computes} has nothing to reduce")
    op = f"mt::{COMBINER[anchor.combiner]}<{VALUES[anchor.body.dtype]}>"
    own = turn(e, site, Map(method.outputs))
    w, at = e.writer, LANE if own.width > 1 else "0"
    with ExitStack() as stack:
        stack.enter_context(w.open(own.head, ["e"], fence=True))
        stack.enter_context(inside(e, site.ranges, own.element(site.ranges, idx(0))))
        point = placed(site.point, own.element(site.ranges, lane_of(own.width)))
        w.write(f"{op}::Part part[{own.width}];")
        w.write("#pragma unroll")
        w.write(f"for (idx u = 0; u < {own.width}; ++u) part[u] = {op}::identity();")
        axes = [anchor.reduce[p] for p in method.order]
        with ExitStack() as terms:
            for k, a in enumerate(axes):
                head = f"for (idx {a.name} = 0; {a.name} < {a.extent}; ++{a.name})"
                block = terms.enter_context(w.open(head, [a.name], fence=True))
                straight = math.prod(x.extent for x in axes[k:]) <= MOST_STRAIGHT
                several = AT_ONCE if k == len(axes) - 1 else 1
                block.pragma = "#pragma unroll" + ("" if straight else f" {several}")
            with e.vector(own.width):
                text = bare(e.body(anchor.body, point))
                w.write(f"part[{at}] = {op}::combine(part[{at}], {text});")
        with e.vector(own.width):
            e.finish(site, point, f"part[{at}]", anchor.body.dtype)
