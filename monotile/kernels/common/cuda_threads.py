"""How the threads of a block divide a step's region."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from monotile.codegen.packs import lane_of
from monotile.codegen.site import Range, Site, unflatten
from monotile.codegen.spelling import bare
from monotile.codegen.thread_map import ThreadMap
from monotile.codegen.vector import VectorEmitter
from monotile.ir.expr import Axis, Expr, add, idx, mul, substitute
from monotile.ir.program import Compute


def placed(point: Mapping[str, Expr], where: Mapping[str, Expr]) -> dict[str, Expr]:
    """`point` with the ranges' variables replaced."""
    return {name: substitute(e, dict(where)) for name, e in point.items()}


def neighbours(first: Axis, width: int) -> Expr:
    """The lanes of the vector that begins at `first`, which is a multiple of `width`."""
    if width == 1:
        return first
    vector = Axis(f"{first.name}_vector", first.extent // width)
    return add(mul(vector, idx(width)), lane_of(width))


def region(ranges: Sequence[Range]) -> int:
    """Elements of a whole tile."""
    total = 1
    for r in ranges:
        total *= r.variable.extent
    return total


def spread(e: Expr, ranges: Sequence[Range]) -> dict[str, Expr]:
    """The ranges' variables at position `e` of a whole tile, row-major."""
    return unflatten(e, [r.variable for r in ranges])


@contextmanager
def each_batch(e: VectorEmitter, site: Site, inner: Sequence[int]) -> Generator[None]:
    """A block in loops over every range but those at the positions `inner`."""
    with ExitStack() as stack:
        stack.enter_context(e.writer.open("", fence=True))
        for k, r in enumerate(site.ranges):
            if k not in inner:
                v = r.variable.name
                head = f"for (idx {v} = 0; {v} < {r.count}; ++{v})"
                stack.enter_context(e.writer.open(head, [v], fence=True))
        yield


@contextmanager
def inside(e: VectorEmitter, ranges: Sequence[Range], where: Mapping[str, Expr]) -> Generator[None]:
    """Conditions under which an element of a tile lies inside the tensor."""
    with ExitStack() as stack:
        for r in ranges:
            if r.count != str(r.variable.extent):
                text = bare(e.index(where[r.variable.name]))
                stack.enter_context(e.writer.open(f"if ({text} < {r.count})", fence=True))
            if r.low:
                text = bare(e.index(where[r.variable.name]))
                stack.enter_context(e.writer.open(f"if ({text} >= {r.low})", fence=True))
            if r.first:
                text = bare(e.index(where[r.variable.name]))
                head = f"if ({text} >= {r.dim.lead} || {r.first} == 0)"
                stack.enter_context(e.writer.open(head, fence=True))
        yield


def thread_map(e: VectorEmitter, site: Site, width: int, windows: int = 1) -> ThreadMap:
    """One vector of `width` neighbours a thread, in each of its windows."""
    groups = region(site.ranges) // width
    if windows > 1:
        slid = site.ranges[-2].variable.extent
        groups = groups // slid * -(-slid // windows)
    return ThreadMap(width, groups, site.step.first_thread, e.plan.launch.threads, windows)


def write_element(e: VectorEmitter, site: Site, point: Mapping[str, Expr]) -> None:
    """One element of a step without a reduction."""
    body = site.anchor.body if isinstance(site.anchor, Compute) else site.anchor.value
    e.finish(site, point, e.body(body, point), body.dtype)
