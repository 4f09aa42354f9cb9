"""Transposing copies on CUDA: vectors in one memory order become vectors in the other."""

from contextlib import ExitStack

from monotile.codegen.address import stored
from monotile.codegen.base import STORAGE, plus
from monotile.codegen.packs import LANE, lane_of
from monotile.codegen.site import Site
from monotile.codegen.spelling import unary
from monotile.codegen.thread_map import ThreadMap
from monotile.codegen.vector import VectorEmitter
from monotile.errors import InternalError
from monotile.ir.expr import Expr, Unary, idx
from monotile.ir.program import Compute
from monotile.kernels.common.cuda_threads import each_batch, inside, placed
from monotile.kernels.transpose.match import copied
from monotile.kernels.transpose.method import Interleave, Transpose, TransposeTiles


def write(e: VectorEmitter, site: Site) -> None:
    """Writes the step, dispatched by its method."""
    match site.step.method:
        case Transpose() as method:
            write_transpose(e, site, method)
        case Interleave() as method:
            write_interleave(e, site, method)
        case TransposeTiles() as method:
            write_tiles(e, site, method)
        case other:
            raise InternalError(f"no transposition: {other}")


def write_transpose(e: VectorEmitter, site: Site, method: Transpose) -> None:
    """A task's operand is copied on chip in memory order, piece by piece. Then a thread takes `count` vectors from it, and writes as many
    along the last axis of the result."""
    anchor = site.anchor
    x, width = copied(anchor) if isinstance(anchor, Compute) else None, method.vector
    if x is None or not isinstance(anchor, Compute):
        raise InternalError(f"step {site.step.computes} is no copy")
    behind = site.ranges[method.behind]
    ranges = tuple(r for r in site.ranges if r is not behind)
    count, t = behind.dim.extent, behind.variable
    turns = ThreadMap(width, ranges[-1].variable.extent // width, 0, e.plan.launch.threads)
    w, kind = e.writer, STORAGE[x.dtype]
    start = turns.element(ranges, idx(0))
    held = f"mt::Runs<{kind}, {width}, {count}>"
    pieces = f"for (idx q = threadIdx.x; q < {turns.groups * count}; q += {turns.threads})"
    with w.open(pieces, ["q", "e"], fence=True):
        w.write(f"const idx e = q / {count};")
        with inside(e, ranges, start):
            source = e.address_of(x, placed(site.point, start | {t.name: idx(0)}))
            w.write(f"{held}::fetch(scratch + {site.step.scratch}, q, {source});")
    w.write(f"{held}::settle();")
    with ExitStack() as stack:
        stack.enter_context(w.open(turns.head, ["e"], fence=True))
        stack.enter_context(inside(e, ranges, start))
        w.write(f"mt::Pack<{kind}, {width}> run[{count}];")
        w.write(f"{held}::take(run, scratch + {site.step.scratch}, e);")
        head = f"for (idx {t.name} = 0; {t.name} < {count}; ++{t.name})"
        stack.enter_context(w.open(head, [t.name], fence=True)).pragma = "#pragma unroll"
        point = placed(site.point, turns.element(ranges, lane_of(width)))
        with e.vector(width):
            at = f"({LANE} * {count} + {t.name})"
            text = e.lane_value(f"run[{at} / {width}]", x.dtype, f"{at} % {width}")
            if isinstance(anchor.body, Unary):
                text = unary(anchor.body.op, text, x.dtype)
            e.finish(site, point, text, x.dtype)


def write_tiles(e: VectorEmitter, site: Site, method: TransposeTiles) -> None:
    """All threads of a block transpose one tile per task."""
    anchor, w = site.anchor, e.writer
    x = copied(anchor) if isinstance(anchor, Compute) else None
    if x is None or not isinstance(anchor, Compute):
        raise InternalError(f"step {site.step.computes} is no copy")
    kind, rounded = STORAGE[anchor.out.dtype], anchor.body is not x
    rows, columns = site.ranges[method.rows], site.ranges[method.columns]
    first: dict[str, Expr] = {r.variable.name: idx(0) for r in (rows, columns)}
    tile = f"mt::TransposeTile<{kind}, {method.extent}, {method.vector}, {e.plan.launch.threads}{', true' if rounded else ''}>"
    w.write(
        f'static_assert({tile}::BYTES <= {site.step.scratch_bytes}, "The Plan gives a tile too little shared memory.");'
    )
    with each_batch(e, site, (method.rows, method.columns)):
        start = placed(site.point, first)
        along = (rows.variable, columns.variable)
        steps = e.steps(x, site.point, along)
        source = e.address_of(x, start)
        index = [site.point[a.name] for a in anchor.axes]
        for place in stored(e.plan.places[anchor.out.name]):
            out = e.strides(anchor.out, index, place, along)
            if steps is None or out is None or (steps[1], out[0]) != (1, 1):
                raise InternalError(
                    f"{anchor.out.name} and what it copies do not lie in even steps"
                )
            to = plus(*e.address(anchor.out, [start[a.name] for a in anchor.axes], place))
            given = f"({kind} const*)({source}), {steps[0]}, ({kind}*)({to}), {out[1]}, {rows.count}, {columns.count}"
            w.write(f"{tile}::run(scratch + {site.step.scratch}, {given});")


def write_interleave(e: VectorEmitter, site: Site, method: Interleave) -> None:
    """A thread has one vector along the axis before the last, for each value of the last."""
    anchor, width = site.anchor, method.vector
    if not isinstance(anchor, Compute) or site.followers:
        raise InternalError(f"step {site.step.computes} is not interleaved")
    rows, last = site.ranges
    count = last.variable.extent
    turns = ThreadMap(width, rows.variable.extent // width, 0, e.plan.launch.threads)
    w, run = e.writer, e.writer.fresh("run")
    with ExitStack() as stack:
        stack.enter_context(w.open(turns.head, ["e"], fence=True))
        stack.enter_context(inside(e, (rows,), turns.element((rows,), idx(0))))
        w.write(f"mt::Pack<{STORAGE[anchor.out.dtype]}, {width}> {run}[{count}];")
        for k in range(count):
            where = turns.element((rows,), lane_of(width)) | {last.variable.name: idx(k)}
            point = placed(site.point, where)
            with e.vector(width):
                text = e.body(anchor.body, point)
                text = e.made(anchor, text, anchor.body.dtype, used=False)
                if e.hands_on(anchor.out):
                    e.hand_on(anchor.out, [point[a.name] for a in anchor.axes], text)
                at = f"({LANE} * {count} + {k})"
                w.write(
                    e.store(
                        anchor.out.dtype, f"{run}[{at} / {width}].value", f"{at} % {width}", text
                    )
                )
        where = turns.element((rows,), idx(0)) | {last.variable.name: idx(0)}
        point = placed(site.point, where)
        for place in stored(e.plan.places[anchor.out.name]):
            base, offset = e.address(anchor.out, [point[a.name] for a in anchor.axes], place)
            for k in range(count):
                w.write(f"mt::store({plus(base, offset)} + {k * width}, {run}[{k}]);")
