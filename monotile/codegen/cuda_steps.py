"""How the threads of a block share a step's region: maps, reductions and serial writes."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from monotile.codegen.base import VALUES, Range, Site, unflatten
from monotile.codegen.expression import bare
from monotile.codegen.vector import VectorEmitter, lane_of
from monotile.errors import InternalError
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, add, axes_of, idx, loads, mul, substitute
from monotile.ir.program import Compute
from monotile.schedule.plan import Map, Reduce

MOST_TOGETHER = 10  # outputs that a group of lanes reduces at the same time
MOST_WORDS = 128  # registers of a thread that loads on their way may take
COMBINER = {
    "sum": "Sum",
    "prod": "Prod",
    "max": "Max",
    "min": "Min",
    "any": "Any",
    "all": "All",
    "argmax": "ArgMax",
    "argmin": "ArgMin",
}


def fitting(wanted: int, *sizes: int) -> int:
    """The largest power of two up to `wanted` that divides all `sizes`."""
    width = 1
    while width * 2 <= wanted and all(s % (width * 2) == 0 for s in sizes):
        width *= 2
    return width


def placed(point: Mapping[str, Expr], where: Mapping[str, Expr]) -> dict[str, Expr]:
    """`point` with the ranges' variables replaced."""
    return {name: substitute(e, dict(where)) for name, e in point.items()}


def vector_width(wanted: int, site: Site, r: Range) -> int:
    """Neighbours along the last axis that one thread takes, where `r` walks that axis innermost."""
    anchor = site.anchor
    if not isinstance(anchor, Compute) or not anchor.axes:
        return 1
    if not r.dim.axes or r.dim.axes[-1] != len(anchor.axes) - 1:
        return 1
    return fitting(wanted, r.dim.tile, r.dim.extent, anchor.axes[-1].extent)


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
def inside(e: VectorEmitter, ranges: Sequence[Range], where: Mapping[str, Expr]) -> Generator[None]:
    """Conditions under which an element of a tile lies inside the tensor."""
    with ExitStack() as stack:
        for r in ranges:
            if r.count != str(r.variable.extent):
                text = bare(e.index(where[r.variable.name]))
                stack.enter_context(e.writer.open(f"if ({text} < {r.count})", fence=True))
        yield


def write_map(e: VectorEmitter, site: Site, method: Map) -> None:
    """One vector of neighbours a thread and turn."""
    ranges, threads = site.ranges, e.plan.launch.threads
    width = vector_width(method.vector, site, ranges[-1]) if ranges else 1
    groups = region(ranges) // width
    with ExitStack() as stack:
        if groups == 1:
            stack.enter_context(e.writer.open("if (threadIdx.x == 0)", fence=True))
            element: Expr = idx(0)
        else:
            element = Axis("e", groups)
            if groups <= threads:
                head = f"if (const idx e = threadIdx.x; e < {groups})"
            else:
                head = f"for (idx e = threadIdx.x; e < {groups}; e += {threads})"
            stack.enter_context(e.writer.open(head, ["e"], fence=True))
        first = spread(mul(element, idx(width)), ranges)
        stack.enter_context(inside(e, ranges, first))
        where = spread(add(mul(element, idx(width)), lane_of(width)), ranges)
        point = placed(site.point, where)
        stack.enter_context(e.vector(width))
        write_element(e, site, point)


def write_element(e: VectorEmitter, site: Site, point: Mapping[str, Expr]) -> None:
    """One element of a step without a reduction."""
    body = site.anchor.body if isinstance(site.anchor, Compute) else site.anchor.value
    e.finish(site, point, e.body(body, point), body.dtype)


def write_serial(e: VectorEmitter, site: Site) -> None:
    """Thread 0, row-major."""
    with ExitStack() as stack:
        stack.enter_context(e.writer.open("if (threadIdx.x == 0)", fence=True))
        for r in site.ranges:
            v = r.variable.name
            head = f"for (idx {v} = 0; {v} < {r.count}; ++{v})"
            stack.enter_context(e.writer.open(head, [v], fence=True))
        write_element(e, site, site.point)


def write_reduce(e: VectorEmitter, site: Site, method: Reduce) -> None:
    """`lanes` neighbouring threads an output, several outputs at the same time."""
    anchor = site.anchor
    if not isinstance(anchor, Compute) or anchor.combiner is None:
        raise InternalError(f"step {site.step.computes} has nothing to reduce")
    lanes, threads = method.lanes, e.plan.launch.threads
    outputs, groups = region(site.ranges), threads // lanes
    together, unroll = _interleave(anchor, method, -(-outputs // groups))
    positional = anchor.combiner in ("argmax", "argmin")
    op = f"mt::{COMBINER[anchor.combiner]}<{VALUES[anchor.body.dtype]}>"
    w = e.writer
    with w.open("", fence=True):
        w.write(f"const idx lane_of_group = threadIdx.x % {lanes}, group = threadIdx.x / {lanes};")
        w.define("lane_of_group")
        w.define("group")
        head = f"for (idx first = 0; first < {outputs}; first += {groups * together})"
        with w.open(head, ["first"]) as block:
            block.pragma = "#pragma unroll 1"
            w.write(f"{op}::Part part[{together}];")
            each = f"for (idx u = 0; u < {together}; ++u)"
            w.write("#pragma unroll")
            w.write(f"{each} part[u] = {op}::identity();")
            _accumulate(e, site, anchor, method, op, together, unroll)
            scratch = "nullptr"
            if lanes > e.target.warp:
                scratch = f"scratch + {site.step.scratch}"
            w.write(f"mt::across<{op}, {lanes}, {together}>(part, {scratch});")
            with w.open(each, ["u"], fence=True) as block:
                block.pragma = "#pragma unroll"
                element = _output(e, outputs, groups)
                test = f"if (lane_of_group == 0 && {element.name} < {outputs})"
                with w.open(test, fence=True):
                    where = spread(element, site.ranges)
                    with inside(e, site.ranges, where):
                        text, dtype = "part[u]", anchor.body.dtype
                        if positional:
                            text = "(int64_t)mt_max_i32(part[u].position, 0)"
                            dtype = DType.I64
                        e.finish(site, placed(site.point, where), text, dtype)


def _interleave(anchor: Compute, method: Reduce, outputs: int) -> tuple[int, int]:
    """How many of a group's `outputs`, and how many vectors of each, are loaded before any is used: the fewest
    round trips to memory that the registers allow."""
    inner = [anchor.reduce[p] for p in method.order] or list(anchor.reduce)
    width = fitting(method.vector, inner[-1].extent) if inner else 1
    read = [x for x in loads(anchor.body) if any(axes_of(i) & {*inner} for i in x.index)]
    words = sum(-(-width * x.dtype.itemsize // 4) for x in dict.fromkeys(read)) or 1
    points = 1
    for a in inner:
        points *= a.extent
    turns = max(1, -(-points // (width * method.lanes)))
    best, cost = (1, 1), outputs * turns
    for together in range(1, min(MOST_TOGETHER, outputs) + 1):
        unroll = max(1, min(turns, 8, MOST_WORDS // (together * words)))
        trips = -(-outputs // together) * -(-turns // unroll)
        if together * unroll * words <= MOST_WORDS and trips < cost:
            best, cost = (together, unroll), trips
    return best


def _output(e: VectorEmitter, outputs: int, groups: int) -> Axis:
    """Names the output number that the group works on; it may reach over the last one."""
    e.writer.write(f"const idx o = first + u * {groups} + group;")
    e.writer.define("o")
    return Axis("o", outputs)


def _accumulate(
    e: VectorEmitter,
    site: Site,
    anchor: Compute,
    method: Reduce,
    op: str,
    together: int,
    unroll: int,
) -> None:
    """Each lane's part of every output."""
    w, lanes = e.writer, method.lanes
    order = method.order or tuple(range(len(anchor.reduce)))
    axes = [anchor.reduce[p] for p in order]
    points, outputs = 1, region(site.ranges)
    for a in axes:
        points *= a.extent
    if points == 0:
        return
    width = fitting(method.vector, axes[-1].extent if axes else 1)
    stride = lanes * width
    turns = -(-points // stride)
    groups = e.plan.launch.threads // lanes
    start = Axis("start", -(-points // width))
    with ExitStack() as stack:
        turn = w.open(f"for (idx turn = 0; turn < {turns}; ++turn)", ["turn"], fence=True)
        stack.enter_context(turn).pragma = f"#pragma unroll {unroll}"
        w.write(f"const idx start = turn * {lanes} + lane_of_group;")
        w.define("start")
        if points % stride:
            stack.enter_context(w.open(f"if (start < {start.extent})", fence=True))
        each = w.open(f"for (idx u = 0; u < {together}; ++u)", ["u"])
        stack.enter_context(each).pragma = "#pragma unroll"
        w.write(f"const idx o = mt_min_idx(first + u * {groups} + group, {outputs - 1});")
        w.define("o")
        where = _clamped(e, site, spread(Axis("o", outputs), site.ranges))
        position = add(mul(start, idx(width)), lane_of(width))
        point = placed(site.point, where) | unflatten(position, axes)
        stack.enter_context(e.vector(width))
        text = bare(e.body(anchor.body, point))
        if anchor.combiner in ("argmax", "argmin"):
            flat: Expr = idx(0)
            for a in anchor.reduce:
                flat = add(mul(flat, idx(a.extent)), point[a.name])
            text = f"{op}::Part{{{text}, (int32_t){bare(e.index(flat))}}}"
        w.write(f"part[u] = {op}::combine(part[u], {text});")


def _clamped(e: VectorEmitter, site: Site, where: dict[str, Expr]) -> dict[str, Expr]:
    """`where` moved to the last element inside the tensor, if it lies outside: the result is not stored."""
    out = dict(where)
    for r in site.ranges:
        v = r.variable.name
        if r.count != str(r.variable.extent):
            text = bare(e.index(where[v]))
            e.writer.write(f"const idx {v} = mt_min_idx({text}, {r.count} - 1);")
            e.writer.define(v)
            out[v] = r.variable
    return out
