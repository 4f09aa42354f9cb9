"""A reduction step: groups of lanes, each with several outputs at the same time.

A group works on `runs` runs of `together` neighbouring outputs at once. A group of few lanes takes runs of one, so that neighbouring
groups have coalesced accesses. A group of many lanes has coalesced loads by itself, and loads operands that neighbouring outputs share
once.
"""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from monotile.analysis.ends import SegmentEnds, segment_ends
from monotile.codegen.packs import LANE, lane_of
from monotile.codegen.site import Site, unflatten
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Expr,
    add,
    axes_of,
    idx,
    loads,
    mul,
    substitute,
)
from monotile.ir.program import Compute
from monotile.kernels.common.cuda_live import dead_round, is_live, live_rounds, live_turns
from monotile.kernels.common.cuda_threads import inside, placed, spread
from monotile.kernels.reduction.cuda_combiner import combiner_of, finish
from monotile.kernels.reduction.form import Form, form_of
from monotile.kernels.reduction.method import Reduce, ReduceMoments
from monotile.kernels.reduction.segmented import LIVE, segment_terms, write_ends


def write_lanes(e: VectorEmitter, site: Site, method: Reduce) -> None:
    """Writes a reduction by groups of `lanes` neighbouring threads, several outputs at the same time."""
    form = form_of(site.anchor, site.step.dims, method, e.plan.launch.threads)
    anchor = form.anchor
    op = combiner_of(anchor, method)
    lanes, w = form.lanes, e.writer
    with w.open("", fence=True):
        write_groups(e, form)
        start, stop = live_rounds(site.ranges, form.rounds, form.groups * form.parts)
        with w.open(f"for (idx round = {start}; round < {stop}; ++round)", ["round"]) as block:
            block.pragma = "#pragma unroll 1"
            if dead := dead_round(site.ranges, form.groups * form.parts):
                w.write(f"if ({dead}) continue;")
            w.write(f"{op}::Part part[{form.parts}];")
            w.write("#pragma unroll")
            w.write(f"for (idx u = 0; u < {form.parts}; ++u) part[u] = {op}::identity();")
            if form.vectors:
                _accumulate(e, site, form, op)
            scratch = f"scratch + {site.step.scratch}" if lanes > e.target.warp else "nullptr"
            call = f"<{op}, {lanes}, {form.parts}>(part, {scratch});"
            if form.spread_out:
                w.write(f"const {op}::Part mine = mt::across_spread{call}")
            elif form.dealt:
                w.write(f"mt::across_dealt<{op}, {lanes}>(part);")
            else:
                w.write(f"mt::across{call}")
            _finish(e, site, form)


def write_groups(e: VectorEmitter, form: Form) -> None:
    """Declares a thread's group, and its lane in the group."""
    text = f"const idx group_lane = threadIdx.x % {form.lanes}, group = threadIdx.x / {form.lanes};"
    e.writer.write(text)
    e.writer.define("group_lane")
    e.writer.define("group")


def _accumulate(e: VectorEmitter, site: Site, form: Form, op: str) -> None:
    """Writes the loop that adds a lane's terms to its partial result of every output."""
    ends = segment_ends(form.anchor)
    if isinstance(site.step.method, ReduceMoments):
        _accumulate_moments(e, site, form, op)
        return
    walk = each_vector(e, site, form) if ends is None else _each_segment_term(e, site, form, ends)
    with walk as point, e.vector(form.width):
        text = bare(e.body(form.anchor.body if ends is None else ends.body, point))
        if form.anchor.combiner in ("argmax", "argmin"):
            flat: Expr = idx(0)
            for a in form.anchor.reduce:
                flat = add(mul(flat, idx(a.extent)), point[a.name])
            text = f"{op}::Part{{{text}, (int32_t){bare(e.index(flat))}}}"
        if there := is_live(e, site, form.axes, point):
            text = f"({there}) ? ({text}) : {op}::identity()"
        number = _number(form, "v", "u")
        sums = f"{op}::combine(part[{number}], {text})"
        text = sums if ends is None else f"{LIVE} ? {sums} : part[{number}]"
        e.writer.write(f"part[{number}] = {text};")


def _accumulate_moments(e: VectorEmitter, site: Site, form: Form, op: str) -> None:
    """The same for a sum and its squares: the moments of a vector's terms are computed first, then combined with the others."""
    w, terms = e.writer, e.writer.fresh("terms")
    with each_vector(e, site, form) as point:
        w.write(f"float {terms}[{form.width}];")
        with e.vector(form.width):
            lane = LANE if form.width > 1 else "0"
            w.write(f"{terms}[{lane}] = {bare(e.body(form.anchor.body, point))};")
        w.write(f"{op}::add(part[{_number(form, 'v', 'u')}], {terms});")


@contextmanager
def each_vector(e: VectorEmitter, site: Site, form: Form) -> Generator[dict[str, Expr]]:
    """Loops over a lane's vectors, for each of its outputs. Yields the values of the axes there. A run beyond the last is the last one
    again, and is not stored."""
    w = e.writer
    start, run = Axis("start", form.vectors), Axis("run", form.all_runs)
    with ExitStack() as stack:
        first, end = live_turns(e, site, form.axes, form.turns, form.lanes * form.width)
        turn = w.open(f"for (idx turn = {first}; turn < {end}; ++turn)", ["turn"], fence=True)
        stack.enter_context(turn).pragma = f"#pragma unroll {form.unroll}"
        w.write(f"const idx start = turn * {form.lanes} + group_lane;")
        w.define("start")
        if form.vectors % form.lanes:
            stack.enter_context(w.open(f"if (start < {form.vectors})", fence=True))
        if form.runs > 1:
            each = w.open(f"for (idx v = 0; v < {form.runs}; ++v)", ["v"])
            stack.enter_context(each).pragma = "#pragma unroll"
        text = form.run("v")
        text = text if form.whole else f"mt_min_idx({text}, {form.all_runs - 1})"
        w.write(f"const idx run = {text};")
        w.define("run")
        if form.together > 1:
            each = w.open(f"for (idx u = 0; u < {form.together}; ++u)", ["u"])
            stack.enter_context(each).pragma = "#pragma unroll"
        u = Axis("u", form.together) if form.together > 1 else idx(0)
        output = add(mul(run, idx(form.together)), u)
        where = _clamped(e, site, spread(output, site.ranges))
        position = add(mul(start, idx(form.width)), lane_of(form.width))
        yield placed(site.point, where) | where | unflatten(position, form.axes)


@contextmanager
def _each_segment_term(
    e: VectorEmitter, site: Site, form: Form, ends: SegmentEnds
) -> Generator[dict[str, Expr]]:
    """The same for a segmented reduction: a loop over the lane's terms of its only output."""
    w, (axis,) = e.writer, form.axes
    with w.open("", fence=True):
        text = form.run("0")
        w.write(
            f"const idx run = {text if form.whole else f'mt_min_idx({text}, {form.all_runs - 1})'};"
        )
        w.define("run")
        where = _clamped(e, site, spread(Axis("run", form.all_runs), site.ranges))
        point = placed(site.point, where) | where
        limits = write_ends(e, ends, point)
        with segment_terms(e, "term", limits, form.unroll, "group_lane", form.lanes):
            yield point | {axis.name: Axis("term", axis.extent)}


def _number(form: Form, v: str, u: str) -> str:
    """Text of the index of the partial result of output `u` of run `v`."""
    if form.together == 1:
        return v if form.runs > 1 else "0"
    return f"{v} * {form.together} + {u}" if form.runs > 1 else u


def _clamped(e: VectorEmitter, site: Site, where: dict[str, Expr]) -> dict[str, Expr]:
    """`where`, clamped to the last element inside the tensor where an operand is read from memory: the result is not stored. On-chip memory
    may be read anywhere within the tile."""
    out = dict(where)
    for r in site.ranges:
        v = r.variable.name
        if r.count != str(r.variable.extent) and _reads_far(e, site, r.variable):
            text = bare(e.index(where[v]))
            e.writer.write(f"const idx {v} = mt_min_idx({text}, {r.count} - 1);")
            e.writer.define(v)
            out[v] = r.variable
    return out


def _reads_far(e: VectorEmitter, site: Site, variable: Axis) -> bool:
    """Whether something that depends on `variable` is read from memory, or determines an index."""
    body = site.anchor.body if isinstance(site.anchor, Compute) else site.anchor.value
    for x in loads(body):
        used = {a for i in x.index for a in axes_of(substitute(i, dict(site.point)))}
        if any(loads(i) for i in x.index) or (variable in used and not e.on_chip(x.tensor)):
            return True
    return not body.dtype.is_float


def _finish(e: VectorEmitter, site: Site, form: Form) -> None:
    """Writes the epilogue of all outputs: distributed over the lanes of a group, or in sequence by a single lane."""
    w, together = e.writer, form.together
    tests: list[str] = []
    with ExitStack() as stack:
        text = "part[0]"
        if form.spread_out or form.dealt:
            number, all_live = "group_lane", form.parts == form.lanes
            if form.dealt:
                head = f"for (idx turn = 0; turn < {form.finishes}; ++turn)"
                stack.enter_context(w.open(head, ["turn"], fence=True)).pragma = "#pragma unroll"
                number, all_live = "number", form.parts % form.lanes == 0
                w.write(f"const idx number = turn * {form.lanes} + group_lane;")
            w.write(f"const idx v = {number} / {together}, u = {number} % {together};")
            w.define("v")
            w.define("u")
            text = "part[turn]" if form.dealt else "mine"
            if not all_live:
                tests.append(f"{number} < {form.parts}")
        else:
            for name, count in (("v", form.runs), ("u", together)):
                if count > 1:
                    head = f"for (idx {name} = 0; {name} < {count}; ++{name})"
                    block = stack.enter_context(w.open(head, [name], fence=True))
                    block.pragma = "#pragma unroll"
            text = f"part[{_number(form, 'v', 'u')}]"
            if form.lanes > 1:
                tests.append("group_lane == 0")
        w.write(f"const idx run = {form.run('v')};")
        w.define("run")
        if not form.whole:
            tests.append(f"run < {form.all_runs}")
        if tests:
            stack.enter_context(w.open(f"if ({' && '.join(tests)})", fence=True))
        u = Axis("u", together) if together > 1 else idx(0)
        where = spread(add(mul(Axis("run", form.all_runs), idx(together)), u), site.ranges)
        stack.enter_context(inside(e, site.ranges, where))
        dtype = form.anchor.body.dtype
        if form.anchor.combiner in ("argmax", "argmin"):
            text, dtype = f"(int64_t)mt_max_i32({text}.position, 0)", DType.I64
        finish(e, site, placed(site.point, where), text, dtype)
