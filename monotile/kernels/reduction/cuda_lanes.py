"""A reduction step: groups of lanes, each with several outputs at the same time.

A group works on `runs` runs of `together` neighbouring outputs at once. A group of few lanes takes runs of one, so that
neighbouring groups read and write side by side. A group of many lanes reads side by side by itself: what neighbouring
outputs share it loads once.
"""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from monotile.codegen.base import VALUES, Site, unflatten
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter, lane_of
from monotile.errors import InternalError
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Expr,
    Load,
    add,
    axes_of,
    children,
    idx,
    loads,
    mul,
    substitute,
    walk,
)
from monotile.ir.program import Compute, value_of
from monotile.kernels.common.combiners import COMBINER
from monotile.kernels.common.cuda_threads import inside, placed, region, spread
from monotile.kernels.common.vectors import fitting
from monotile.kernels.reduction.method import Reduce

MOST_TOGETHER = 16  # neighbouring outputs that a group reduces at the same time
MOST_PARTS = 32  # outputs of all its runs
MOST_WORDS = 128  # registers of a thread that loads from memory on their way may take
MOST_UNROLLED = 8
MOST_INSTRUCTIONS = 2048  # in straight line, about: compilers take their time over long stretches
SIDE_BY_SIDE = 64  # bytes that a group reads at once from which on it needs no neighbour
TRIP, CHIP_TRIP, WORD = (
    600,
    60,
    8,
)  # cycles: a round of loads, one on chip, one word of every thread of a block
DIVISION = 5  # instructions of one


@dataclass(frozen=True, slots=True)
class Form:
    """How a step reduces.

    axes: the reduce axes in the order in which they are flattened. width: neighbours a lane takes at once. vectors:
    of one output. turns: of a group over them. groups: of the block. outputs: of a whole tile. together, runs: see
    above; the runs that a group has at once are `groups` apart. unroll: turns whose loads are on their way at once.
    """

    anchor: Compute
    axes: tuple[Axis, ...]
    lanes: int
    width: int
    vectors: int
    turns: int
    groups: int
    outputs: int
    together: int = 1
    runs: int = 1
    unroll: int = 1

    @property
    def parts(self) -> int:
        return self.runs * self.together

    @property
    def all_runs(self) -> int:
        return self.outputs // self.together

    @property
    def rounds(self) -> int:
        """Times a group takes `runs` runs."""
        return -(-self.all_runs // (self.groups * self.runs))

    @property
    def whole(self) -> bool:
        """Whether every group has its runs in every round."""
        return self.rounds * self.runs * self.groups == self.all_runs

    @property
    def spread_out(self) -> bool:
        """Whether each output ends in a lane of its own."""
        return (
            1 < self.parts <= min(self.lanes, 32)
            and 1 << (self.parts - 1).bit_length() <= self.lanes
        )

    @property
    def dealt(self) -> bool:
        """Whether there are more outputs than lanes, and each lane ends with its share of them."""
        return self.parts > self.lanes > 1

    @property
    def finishes(self) -> int:
        """Outputs that a lane finishes."""
        return 1 if self.spread_out else -(-self.parts // self.lanes)

    def run(self, v: str) -> str:
        """Text of the number of the group's run `v`."""
        text = f"{v} * {self.groups} + group" if self.runs > 1 else "group"
        return f"round * {self.groups * self.runs} + {text}" if self.rounds > 1 else text


def write_lanes(e: VectorEmitter, site: Site, method: Reduce) -> None:
    """`lanes` neighbouring threads an output, several outputs at the same time."""
    form = form_of(e, site, method)
    anchor = form.anchor
    op = f"mt::{COMBINER[str(anchor.combiner)]}<{VALUES[anchor.body.dtype]}>"
    lanes, w = form.lanes, e.writer
    with w.open("", fence=True):
        write_groups(e, form)
        with w.open(f"for (idx round = 0; round < {form.rounds}; ++round)", ["round"]) as block:
            block.pragma = "#pragma unroll 1"
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
    """A thread's group, and its lane there."""
    text = f"const idx group_lane = threadIdx.x % {form.lanes}, group = threadIdx.x / {form.lanes};"
    e.writer.write(text)
    e.writer.define("group_lane")
    e.writer.define("group")


def form_of(e: VectorEmitter, site: Site, method: Reduce) -> Form:
    """The number of outputs at once that costs least: round trips to memory, and what is loaded."""
    anchor = site.anchor
    if not isinstance(anchor, Compute) or anchor.combiner is None:
        raise InternalError(f"step {site.step.computes} has nothing to reduce")
    order = method.order or tuple(range(len(anchor.reduce)))
    axes = tuple(anchor.reduce[p] for p in order)
    points = 1
    for a in axes:
        points *= a.extent
    width = fitting(method.vector, axes[-1].extent) if axes else 1
    read = tuple(
        dict.fromkeys(x for x in loads(anchor.body) if any(axes_of(i) & set(axes) for i in x.index))
    )
    form = Form(
        anchor=anchor,
        axes=axes,
        lanes=method.lanes,
        width=width,
        vectors=points // width,
        turns=max(1, -(-points // (width * method.lanes))),
        groups=e.plan.launch.threads // method.lanes,
        outputs=region(site.ranges),
    )
    size = min((x.dtype.itemsize for x in read), default=4)
    most = MOST_TOGETHER if method.lanes * width * size >= SIDE_BY_SIDE else 1
    ways = [
        replace(form, together=u, runs=r)
        for u in range(1, most + 1)
        if form.outputs % u == 0
        for r in range(1, MOST_PARTS // u + 1)
        if r <= -(-form.outputs // (u * form.groups))
    ]
    each = _arithmetic(anchor.body)
    places = _instructions(anchor.body, site)  # where the vectors lie: once for all their elements
    after = sum(_instructions(value_of(s), site) for s in site.followers)
    best, least = form, float("inf")
    for way in ways or [form]:
        far = sum(_words(x, site, way) for x in read if not e.on_chip(x.tensor))
        near = sum(_words(x, site, way) for x in read if e.on_chip(x.tensor))
        room = MOST_INSTRUCTIONS - way.finishes * after
        steps = room // (way.parts * (width * each + places))
        if way.parts > 1 and (far > MOST_WORDS or steps < 1):
            continue
        most = way.turns if way.turns <= 2 * MOST_UNROLLED else MOST_UNROLLED
        unroll = max(1, min(most, MOST_WORDS // max(far, 1), steps))
        trips = -(-way.turns // unroll) * (TRIP if far else CHIP_TRIP)
        cost = way.rounds * (trips + way.turns * (far + near) * WORD)
        if cost < least:
            best, least = replace(way, unroll=unroll), cost
    return best


def _instructions(e: Expr, site: Site) -> int:
    """About how many one evaluation of `e` takes, indices included; what occurs twice counts once."""
    where = spread(Axis("run", max(1, region(site.ranges))), site.ranges)
    here = substitute(e, dict(site.point) | where | placed(site.point, where))
    found = {x for x in walk(here) if children(x)}
    return 1 + sum(DIVISION if _divides(x) else 1 for x in found)


def _arithmetic(e: Expr) -> int:
    """Operations on what is loaded."""
    inner = () if isinstance(e, Load) else children(e)
    return bool(inner) + sum(_arithmetic(x) for x in inner)


def _divides(e: Expr) -> bool:
    return isinstance(e, Binary) and e.op in ("floordiv", "mod", "div")


def _words(x: Load, site: Site, form: Form) -> int:
    """Registers that a vector of `x` takes for each turn: once for all outputs that share it."""
    words = -(-form.width * x.dtype.itemsize // 4)
    by_run, by_u = differs(x, site, form)
    return words * (form.parts if by_u else form.runs if by_run else 1)


def differs(x: Load, site: Site, form: Form) -> tuple[bool, bool]:
    """Whether runs, and neighbouring outputs of one run, read different vectors of `x`."""
    run, u = Axis("run", max(1, form.all_runs)), Axis("u", form.together)
    where = spread(add(mul(run, idx(form.together)), u), site.ranges)
    where |= placed(site.point, where)
    used = frozenset[Axis]().union(*(axes_of(substitute(i, where)) for i in x.index))
    return run in used, u in used


def _accumulate(e: VectorEmitter, site: Site, form: Form, op: str) -> None:
    """Each lane's part of every output."""
    with each_vector(e, site, form) as point, e.vector(form.width):
        text = bare(e.body(form.anchor.body, point))
        if form.anchor.combiner in ("argmax", "argmin"):
            flat: Expr = idx(0)
            for a in form.anchor.reduce:
                flat = add(mul(flat, idx(a.extent)), point[a.name])
            text = f"{op}::Part{{{text}, (int32_t){bare(e.index(flat))}}}"
        number = _number(form, "v", "u")
        e.writer.write(f"part[{number}] = {op}::combine(part[{number}], {text});")


@contextmanager
def each_vector(e: VectorEmitter, site: Site, form: Form) -> Generator[dict[str, Expr]]:
    """A block in loops over a lane's vectors, for each of its outputs; gives the axes there. What lies over the last run is
    taken as the last, but not stored."""
    w = e.writer
    start, run = Axis("start", form.vectors), Axis("run", form.all_runs)
    with ExitStack() as stack:
        turn = w.open(f"for (idx turn = 0; turn < {form.turns}; ++turn)", ["turn"], fence=True)
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


def _number(form: Form, v: str, u: str) -> str:
    """Text of the number of the part of output `u` of run `v`."""
    if form.together == 1:
        return v if form.runs > 1 else "0"
    return f"{v} * {form.together} + {u}" if form.runs > 1 else u


def _clamped(e: VectorEmitter, site: Site, where: dict[str, Expr]) -> dict[str, Expr]:
    """`where` moved to the last element inside the tensor, if it lies outside: the result is not stored. On chip there is
    something in either case."""
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
    """Whether something that depends on `variable` is read from memory, or decides what is read."""
    body = site.anchor.body if isinstance(site.anchor, Compute) else site.anchor.value
    for x in loads(body):
        used = {a for i in x.index for a in axes_of(substitute(i, dict(site.point)))}
        if any(loads(i) for i in x.index) or (variable in used and not e.on_chip(x.tensor)):
            return True
    return not body.dtype.is_float


def _finish(e: VectorEmitter, site: Site, form: Form) -> None:
    """Outputs are finished side by side by the lanes of a group, or one after the other by its only one."""
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
        e.finish(site, placed(site.point, where), text, dtype)
