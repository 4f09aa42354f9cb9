"""A reduction step: groups of lanes, each with several outputs at the same time.

A group of few lanes takes outputs that lie apart, so that neighbouring groups read and write side by side. A group of many
lanes reads side by side by itself and takes neighbouring outputs: what they share is loaded once.
"""

from contextlib import ExitStack
from dataclasses import dataclass

from monotile.codegen.base import VALUES, Site, unflatten
from monotile.codegen.cuda_steps import fitting, inside, placed, region, spread
from monotile.codegen.expression import bare
from monotile.codegen.vector import VectorEmitter, lane_of
from monotile.errors import InternalError
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Load, add, axes_of, idx, loads, mul, substitute
from monotile.ir.program import Compute
from monotile.schedule.plan import Reduce

MOST_TOGETHER = 16  # outputs that a group reduces at the same time
MOST_WORDS = 128  # registers of a thread that loads on their way may take
MOST_UNROLLED = 8
SIDE_BY_SIDE = 64  # bytes that a group reads at once from which on it needs no neighbour
TRIP, WORD = 600, 8  # cycles: one round of loads, one word of every thread of a block
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


@dataclass(frozen=True, slots=True)
class _Form:
    """How a step reduces.

    axes: the reduce axes in the order in which they are flattened. width: neighbours a lane takes at once. vectors:
    of one output. turns: of a group over them. groups: of the block. outputs: of a whole tile. together: outputs
    that a group holds, `neighbours` or `groups` apart. unroll: turns whose loads are on their way at once.
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
    neighbours: bool = False
    unroll: int = 1

    @property
    def rounds(self) -> int:
        """Times a group takes `together` outputs."""
        return -(-self.outputs // (self.groups * self.together))

    @property
    def batches(self) -> int:
        """Runs of neighbouring outputs."""
        return self.outputs // self.together

    def output(self, first: Expr, u: Expr) -> Expr:
        """The output number `u` of a group; first: the group's run of neighbours, or its first output."""
        if self.neighbours:
            return add(mul(first, idx(self.together)), u)
        return add(first, mul(u, idx(self.groups)))


def write_reduce(e: VectorEmitter, site: Site, method: Reduce) -> None:
    """`lanes` neighbouring threads an output, several outputs at the same time."""
    anchor = site.anchor
    if not isinstance(anchor, Compute) or anchor.combiner is None:
        raise InternalError(f"step {site.step.computes} has nothing to reduce")
    form = _form(site, anchor, method, e.plan.launch.threads)
    op = f"mt::{COMBINER[anchor.combiner]}<{VALUES[anchor.body.dtype]}>"
    lanes, together, w = form.lanes, form.together, e.writer
    with w.open("", fence=True):
        w.write(f"const idx group_lane = threadIdx.x % {lanes}, group = threadIdx.x / {lanes};")
        w.define("group_lane")
        w.define("group")
        with w.open(f"for (idx round = 0; round < {form.rounds}; ++round)", ["round"]) as block:
            block.pragma = "#pragma unroll 1"
            w.write(f"{op}::Part part[{together}];")
            w.write("#pragma unroll")
            w.write(f"for (idx u = 0; u < {together}; ++u) part[u] = {op}::identity();")
            first = _first(e, form)
            if form.vectors:
                _accumulate(e, site, form, op, first)
            scratch = f"scratch + {site.step.scratch}" if lanes > e.target.warp else "nullptr"
            w.write(f"mt::across<{op}, {lanes}, {together}>(part, {scratch});")
            _finish(e, site, form, op, first)


def _form(site: Site, anchor: Compute, method: Reduce, threads: int) -> _Form:
    """The number of outputs together that costs least: round trips to memory, and what is loaded."""
    order = method.order or tuple(range(len(anchor.reduce)))
    axes = tuple(anchor.reduce[p] for p in order)
    points = 1
    for a in axes:
        points *= a.extent
    width = fitting(method.vector, axes[-1].extent) if axes else 1
    read = tuple(
        dict.fromkeys(x for x in loads(anchor.body) if any(axes_of(i) & set(axes) for i in x.index))
    )
    size = min((x.dtype.itemsize for x in read), default=4)
    base = _Form(
        anchor=anchor,
        axes=axes,
        lanes=method.lanes,
        width=width,
        vectors=points // width,
        turns=max(1, -(-points // (width * method.lanes))),
        groups=threads // method.lanes,
        outputs=region(site.ranges),
        neighbours=method.lanes * width * size >= SIDE_BY_SIDE,
    )
    best = base
    least = float("inf")
    for together in range(1, min(MOST_TOGETHER, max(1, -(-base.outputs // base.groups))) + 1):
        if base.neighbours and base.outputs % together:
            continue
        words = sum(_words(x, site, base, together) for x in read) or 1
        if together > 1 and words > MOST_WORDS:
            continue
        unroll = max(1, min(base.turns, MOST_UNROLLED, MOST_WORDS // words))
        rounds = -(-base.outputs // (base.groups * together))
        cost = rounds * (-(-base.turns // unroll) * TRIP + base.turns * words * WORD)
        if cost < least:
            least = cost
            best = _with(base, together, unroll)
    return best


def _with(f: _Form, together: int, unroll: int) -> _Form:
    return _Form(
        f.anchor, f.axes, f.lanes, f.width, f.vectors, f.turns, f.groups, f.outputs,
        together, f.neighbours, unroll,
    )  # fmt: skip


def _words(x: Load, site: Site, form: _Form, together: int) -> int:
    """Registers that a vector of `x` takes for each turn: once, if all outputs together share it."""
    words = -(-form.width * x.dtype.itemsize // 4)
    if not form.neighbours:
        return words * together
    u = Axis("u", together)
    number = add(mul(Axis("run", form.outputs // together), idx(together)), u)
    where = spread(number, site.ranges)
    where |= placed(site.point, where)
    depends = any(u in axes_of(substitute(i, where)) for i in x.index)
    return words * (together if depends else 1)


def _first(e: VectorEmitter, form: _Form) -> Axis:
    """Where the group begins in this round, at most at the last: what lies over it is computed but not stored."""
    count = form.batches if form.neighbours else form.outputs
    step = form.groups if form.neighbours else form.groups * form.together
    text = f"round * {step} + group" if form.rounds > 1 else "group"
    if form.rounds * step > count:
        text = f"mt_min_idx({text}, {count - 1})"
    e.writer.write(f"const idx run = {text};")
    e.writer.define("run")
    return Axis("run", count)


def _accumulate(e: VectorEmitter, site: Site, form: _Form, op: str, first: Axis) -> None:
    """Each lane's part of every output."""
    w, together = e.writer, form.together
    start = Axis("start", form.vectors)
    with ExitStack() as stack:
        turn = w.open(f"for (idx turn = 0; turn < {form.turns}; ++turn)", ["turn"], fence=True)
        stack.enter_context(turn).pragma = f"#pragma unroll {form.unroll}"
        w.write(f"const idx start = turn * {form.lanes} + group_lane;")
        w.define("start")
        if form.vectors % form.lanes:
            stack.enter_context(w.open(f"if (start < {form.vectors})", fence=True))
        each = w.open(f"for (idx u = 0; u < {together}; ++u)", ["u"])
        stack.enter_context(each).pragma = "#pragma unroll"
        output = form.output(first, Axis("u", together) if together > 1 else idx(0))
        if not form.neighbours and together > 1:
            w.write(f"const idx o = mt_min_idx({bare(e.index(output))}, {form.outputs - 1});")
            w.define("o")
            output = Axis("o", form.outputs)
        where = _clamped(e, site, spread(output, site.ranges))
        position = add(mul(start, idx(form.width)), lane_of(form.width))
        point = placed(site.point, where) | where | unflatten(position, form.axes)
        stack.enter_context(e.vector(form.width))
        text = bare(e.body(form.anchor.body, point))
        if form.anchor.combiner in ("argmax", "argmin"):
            flat: Expr = idx(0)
            for a in form.anchor.reduce:
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


def _finish(e: VectorEmitter, site: Site, form: _Form, op: str, first: Axis) -> None:
    """Outputs are finished side by side by the first lanes of a group, or one after the other by its only ones."""
    w, together = e.writer, form.together
    step = form.groups if form.neighbours else form.groups * together
    count = form.batches if form.neighbours else form.outputs
    tests: list[str] = []
    if form.rounds * step > count:
        tests.append(f"round * {step} + group < {count}" if form.rounds > 1 else f"group < {count}")
    spread_out = 1 < together <= form.lanes
    with ExitStack() as stack:
        u: Expr = idx(0)
        if spread_out:
            w.write(f"{op}::Part mine = part[0];")
            w.write("#pragma unroll")
            w.write(
                f"for (idx u = 1; u < {together}; ++u) mine = group_lane == u ? part[u] : mine;"
            )
            u = Axis("group_lane", together)
        elif together > 1:
            head = w.open(f"for (idx u = 0; u < {together}; ++u)", ["u"], fence=True)
            stack.enter_context(head).pragma = "#pragma unroll"
            u = Axis("u", together)
        if form.lanes > 1 and together < form.lanes:
            tests.insert(0, f"group_lane < {together}" if spread_out else "group_lane == 0")
        output = form.output(first, u)
        if not form.neighbours and form.rounds * step > form.outputs and together > 1:
            tests.append(f"{bare(e.index(output))} < {form.outputs}")
        if tests:
            stack.enter_context(w.open(f"if ({' && '.join(tests)})", fence=True))
        where = spread(output, site.ranges)
        stack.enter_context(inside(e, site.ranges, where))
        text = "mine" if spread_out else "part[u]" if together > 1 else "part[0]"
        dtype = form.anchor.body.dtype
        if form.anchor.combiner in ("argmax", "argmin"):
            text, dtype = f"(int64_t)mt_max_i32({text}.position, 0)", DType.I64
        e.finish(site, placed(site.point, where), text, dtype)
