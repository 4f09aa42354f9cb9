"""Writes in order: by one thread, or by one for each point of the axes along which none meet."""

from contextlib import ExitStack

from monotile.codegen.site import Site
from monotile.codegen.vector import VectorEmitter
from monotile.ir.expr import Axis, Expr, idx
from monotile.kernels.common.cuda_threads import inside, placed, region, spread, write_element
from monotile.kernels.scatter.method import Serial


def write(e: VectorEmitter, site: Site) -> None:
    """A point of the parallel ranges a thread and turn; there the others, row-major."""
    method = site.step.method
    apart = method.parallel if isinstance(method, Serial) else ()
    parallel = [site.ranges[p] for p in apart]
    rest = [r for p, r in enumerate(site.ranges) if p not in apart]
    points, threads = region(parallel), e.plan.launch.threads
    with ExitStack() as stack:
        element: Expr = idx(0)
        if points == 1:
            stack.enter_context(e.writer.open("if (threadIdx.x == 0)", fence=True))
        else:
            element = Axis("e", points)
            head = f"for (idx e = threadIdx.x; e < {points}; e += {threads})"
            stack.enter_context(e.writer.open(head, ["e"], fence=True))
        where = spread(element, parallel)
        stack.enter_context(inside(e, parallel, where))
        for r in rest:
            v = r.variable.name
            head = f"for (idx {v} = 0; {v} < {r.count}; ++{v})"
            stack.enter_context(e.writer.open(head, [v], fence=True))
        write_element(e, site, placed(site.point, where))
