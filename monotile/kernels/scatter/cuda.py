"""Scatters on CUDA: serial writes by one thread, or by one for each point of the axes along which writes cannot collide; sums over lists of
terms; and the construction of these lists."""

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager

from monotile.codegen.site import Range, Site
from monotile.codegen.vector import VectorEmitter
from monotile.codegen.writer import Block
from monotile.ir.expr import Axis, Expr, idx, substitute
from monotile.ir.program import Scatter
from monotile.kernels.common.cuda_prefetch import read_by
from monotile.kernels.common.cuda_threads import inside, placed, region, spread, write_element
from monotile.kernels.scatter.cuda_lists import write_listed
from monotile.kernels.scatter.cuda_rows import write_rows
from monotile.kernels.scatter.method import Listed, ListRows, Serial


def write(e: VectorEmitter, site: Site) -> None:
    """Writes the step, dispatched by its method."""
    if isinstance(site.step.method, Listed):
        write_listed(e, site, site.step.method)
    elif isinstance(site.step.method, ListRows):
        write_rows(e, site, site.step.method)
    else:
        write_serial(e, site)


def write_serial(e: VectorEmitter, site: Site) -> None:
    """A thread has one point of the parallel ranges at a time, for which it loops over the other ranges in row-major order."""
    method = site.step.method
    assert isinstance(method, Serial)
    parallel = [site.ranges[p] for p in method.parallel]
    rest = [r for p, r in enumerate(site.ranges) if p not in method.parallel]
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
        together = method.ahead("loop")
        for r in rest[:-1] if together else rest:
            v = r.variable.name
            head = f"for (idx {v} = 0; {v} < {r.count}; ++{v})"
            stack.enter_context(e.writer.open(head, [v], fence=True))
        point = placed(site.point, where)
        if together:
            _write_together(e, site, point, rest[-1], together)
        else:
            write_element(e, site, point)


def _write_together(
    e: VectorEmitter, site: Site, point: Mapping[str, Expr], along: Range, count: int
) -> None:
    """Writes several elements along a range at once: all their loads are issued before any element is written."""
    anchor, w, v = site.anchor, e.writer, along.variable.name
    assert isinstance(anchor, Scatter)
    name = w.fresh("turn")
    read = read_by([substitute(x, dict(point)) for x in (anchor.value, *anchor.index)])
    wanted = {x: when for x, when in read.items() if x.tensor not in (anchor.base, anchor.out)}
    with w.open(f"auto fetch_{name} = [&](idx {v})", [v], fence=True, tail=";"):
        names = e.held(wanted, 1, f"{name}[turn]")
    head = f"for (idx first = 0; first < {along.count}; first += {count})"
    with w.open(head, ["first"], fence=True):
        w.write(f"decltype(fetch_{name}(0)) {name}[{count}]{{}};")
        with _each(e, along, count):
            w.write(f"{name}[turn] = fetch_{name}({v});")
        with _each(e, along, count) as block:
            block.names.update(names)
            write_element(e, site, point)


@contextmanager
def _each(e: VectorEmitter, along: Range, count: int) -> Generator[Block]:
    """An unrolled loop over the elements from `first` on that exist."""
    v = along.variable.name
    head = f"for (idx turn = 0; turn < {count}; ++turn)"
    with e.writer.open(head, ["turn", v], fence=True) as loop:
        loop.pragma = "#pragma unroll"
        e.writer.write(f"const idx {v} = first + turn;")
        with e.writer.open(f"if ({v} < {along.count})", fence=True) as block:
            yield block
