"""A reduction across the rows of a matrix whose columns are the outputs: a vector times a row-major matrix.

Neighbouring threads have neighbouring vectors of outputs. The lanes of an output have different rows, and are combined in on-chip memory.
"""

import math
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

from monotile.analysis.ends import segment_ends
from monotile.analysis.unconditional import holding
from monotile.codegen.packs import LANE, lane_of
from monotile.codegen.site import Site, unflatten
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter
from monotile.errors import InternalError
from monotile.ir.expr import Axis, Binary, Expr, Load, add, idx, mul
from monotile.ir.program import Compute, ends_of
from monotile.kernels.common.cuda_live import is_live, live_turns
from monotile.kernels.common.cuda_threads import inside, placed, region, spread
from monotile.kernels.reduction.cuda_combiner import combiner_of, finish
from monotile.kernels.reduction.method import Reduce, ReduceMoments
from monotile.kernels.reduction.segmented import write_ends


def write_columns(e: VectorEmitter, site: Site, method: Reduce) -> None:
    anchor, ranges = site.anchor, site.ranges
    if not isinstance(anchor, Compute) or anchor.combiner is None:
        raise InternalError(f"step {site.step.computes} has nothing to reduce")
    op = combiner_of(anchor, method)
    threads = e.plan.launch.threads
    across, width = threads // method.lanes, method.outputs
    vectors = region(ranges) // width
    rounds, w = -(-vectors // across), e.writer
    with ExitStack() as stack:
        stack.enter_context(w.open("", fence=True))
        w.write(f"const idx column = threadIdx.x % {across}, row_lane = threadIdx.x / {across};")
        w.define("column")
        w.define("row_lane")
        head = f"for (idx round = 0; round < {rounds}; ++round)"
        stack.enter_context(w.open(head, ["round"], fence=True)).pragma = "#pragma unroll 1"
        w.write(f"{op}::Part part[{width}];")
        w.write("#pragma unroll")
        w.write(f"for (idx u = 0; u < {width}; ++u) part[u] = {op}::identity();")
        _accumulate(e, site, method, op, across, width, vectors)
        call = f"<{op}, {across}, {threads}>(part, scratch + {site.step.scratch});"
        w.write(f"const {op}::Part mine = mt::across_columns{call}")
        at = f"round * {across * width} + threadIdx.x" if rounds > 1 else "threadIdx.x"
        w.write(f"const idx output = {at};")
        w.define("output")
        tests = [f"threadIdx.x < {across * width}"]
        if vectors % across:
            tests.append(f"output < {vectors * width}")
        stack.enter_context(w.open(f"if ({' && '.join(tests)})", fence=True))
        where = spread(Axis("output", vectors * width), ranges)
        stack.enter_context(inside(e, ranges, where))
        finish(e, site, placed(site.point, where), "mine", anchor.body.dtype)


def _accumulate(
    e: VectorEmitter, site: Site, method: Reduce, op: str, across: int, width: int, vectors: int
) -> None:
    """Writes the loop that adds a thread's rows to its vector of columns."""
    anchor, w = site.anchor, e.writer
    assert isinstance(anchor, Compute)
    axes = [anchor.reduce[p] for p in method.order]
    rows = math.prod(a.extent for a in axes)
    ends = segment_ends(anchor)
    with ExitStack() as stack:
        w.write(f"const idx vector = round * {across} + column;")
        w.define("vector")
        if vectors % across:
            stack.enter_context(w.open(f"if (vector < {vectors})", fence=True))
        first = mul(Axis("vector", vectors), idx(width))
        stack.enter_context(inside(e, site.ranges, spread(first, site.ranges)))
        near = len(axes) == 1 and axes[0].name in site.spans
        if ends is not None:
            at = placed(site.point, spread(first, site.ranges))
            there = stack.enter_context(_segment_rows(e, method, write_ends(e, ends, at)))
        else:
            walk = _live_rows if near else _rows
            there = stack.enter_context(walk(e, site, method, axes))
        where = spread(add(first, lane_of(width)), site.ranges)
        point = placed(site.point, where) | unflatten(Axis("row", rows), axes)
        if not near and (test := is_live(e, site, axes, point)):
            stack.enter_context(w.open(f"if ({test})", fence=True))
        moments = isinstance(method, ReduceMoments)
        if moments:  # all outputs of a thread have as many terms
            w.write(f"const float share = {op}::share(part[0]);")
        with e.vector(width):
            body = ends.body if ends else _live_body(site, axes[0]) if near else anchor.body
            text, lane = bare(e.body(body, point)), LANE if width > 1 else "0"
            text = f"({there}) ? ({text}) : {op}::identity()" if there else text
            if moments:
                w.write(f"{op}::add(part[{lane}], {text}, share);")
            else:
                w.write(f"part[{lane}] = {op}::combine(part[{lane}], {text});")


def _live_body(site: Site, along: Axis) -> Expr:
    """A term, without the tests that hold for each of those within the bounds of `along`: under a test loads would wait for one another."""
    anchor = site.anchor
    assert isinstance(anchor, Compute)
    ends = {t.name: Load(t, ()) for t in ends_of(anchor)}
    bounds = (b for b in site.step.bounds if b.axis == along.name and b.last and not b.at)
    return holding(anchor.body, {Binary("lt", along, ends[b.last]) for b in bounds})


@contextmanager
def _rows(e: VectorEmitter, site: Site, method: Reduce, axes: Sequence[Axis]) -> Generator[str]:
    """A loop over the thread's rows. Yields the text of a row's condition, here none."""
    w, rows = e.writer, math.prod(a.extent for a in axes)
    begin, end = live_turns(e, site, axes, -(-rows // method.lanes), method.lanes)
    with ExitStack() as stack:
        loop = w.open(f"for (idx turn = {begin}; turn < {end}; ++turn)", ["turn"], fence=True)
        stack.enter_context(loop).pragma = f"#pragma unroll {method.unroll}"
        w.write(f"const idx row = turn * {method.lanes} + row_lane;")
        w.define("row")
        if rows % method.lanes:
            stack.enter_context(w.open(f"if (row < {rows})", fence=True))
        yield ""


@contextmanager
def _segment_rows(e: VectorEmitter, method: Reduce, ends: tuple[str, str]) -> Generator[str]:
    """The same over the rows between the ends of a segmented reduction."""
    w, (first, end) = e.writer, ends
    head = f"for (idx row = {first} + row_lane; row < {end}; row += {method.lanes})"
    with w.open(head, ["row"], fence=True) as block:
        block.pragma = f"#pragma unroll {method.unroll}"
        yield ""


@contextmanager
def _live_rows(
    e: VectorEmitter, site: Site, method: Reduce, axes: Sequence[Axis]
) -> Generator[str]:
    """The same over live rows, `unroll` of them with their loads in flight together; a row beyond the last is the last one again. Yields
    the text of whether the row counts."""
    w, span = e.writer, site.spans[axes[0].name]
    begin, end = live_turns(e, site, axes, -(-axes[0].extent // method.lanes), method.lanes)
    first, last = bare(e.index(span.first)), bare(e.index(span.end))
    head = f"for (idx turn = {begin}; turn < {end}; turn += {method.unroll})"
    with w.open(head, ["turn"], fence=True) as outer:
        outer.pragma = "#pragma unroll 1"
        inner = f"for (idx ahead = 0; ahead < {method.unroll}; ++ahead)"
        with w.open(inner, ["ahead"], fence=True) as block:
            block.pragma = "#pragma unroll"
            w.write(f"const idx asked = (turn + ahead) * {method.lanes} + row_lane;")
            w.write(f"const idx row = mt_max_idx({first}, mt_min_idx(asked, {last} - 1));")
            w.define("row")
            yield "row == asked"
