"""Rows in registers: what a row reads is asked for at once, its sums meet across the lanes, and nothing lies on chip.

Held rows_steady[2], rows_held[2];                   what the lane reads of its row, an element for each turn
float x_3[2 * 8];                                    a wide value, for whoever reads it later
part[0] = ...; mt::across<mt::Sum<float>, 64, 1>;    a sum, which all lanes of the row then know
"""

import math
from collections.abc import Generator, Hashable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from monotile.analysis.dependence import loads_of
from monotile.analysis.rowwise import Rowwise, rowwise
from monotile.codegen.base import VALUES, Site, unflatten
from monotile.codegen.cuda_early import known_ahead
from monotile.codegen.cuda_reduce import COMBINER
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter, lane_of
from monotile.codegen.writer import Block
from monotile.errors import InternalError
from monotile.ir.expr import Axis, Expr, Load, add, idx, mul, substitute
from monotile.ir.program import Compute
from monotile.schedule.hold_rows import PART, turns
from monotile.schedule.plan import HoldRows


@dataclass(eq=False)
class _Rows:
    """A step on its way. names: texts of what was asked for. arrays: of wide values. whole: every group has its row."""

    e: VectorEmitter
    site: Site
    method: HoldRows
    found: Rowwise
    turns: int
    vectors: int
    whole: bool
    names: dict[Hashable, str] = field(default_factory=dict[Hashable, str])
    arrays: dict[str, str] = field(default_factory=dict[str, str])

    def point(self, s: Compute) -> dict[str, Expr]:
        """The axes of `s` at the current row, and place in it."""
        anchor = self.site.anchor
        rows = zip(s.axes, anchor.axes, strict=False)
        out = dict(self.e.loop_axes)
        out |= {a.name: self.site.point[b.name] for a, b in [*rows][: self.found.rows]}
        start = Axis("start", self.vectors) if self.vectors > 1 else idx(0)
        position = add(mul(start, idx(self.method.vector)), lane_of(self.method.vector))
        out |= {a.name: idx(0) for a in s.axes[self.found.rows :]}
        return out | unflatten(position, self.found.along(s))

    @contextmanager
    def each_turn(self, *, live: bool = False) -> Generator[Block]:
        """A block for each vector of the lane. live: of rows that there are."""
        w = self.e.writer
        head = f"for (idx turn = 0; turn < {self.turns}; ++turn)"
        with w.open(head, ["turn"], fence=True) as block:
            block.pragma = "#pragma unroll"
            w.write(f"const idx start = turn * {self.method.lanes} + group_lane;")
            w.define("start")
            tests = [f"start < {self.vectors}"] * bool(self.vectors % self.method.lanes)
            tests += ["live"] * (live and not self.whole)
            with w.open(f"if ({' && '.join(tests)})" if tests else "", fence=True) as inside:
                yield inside

    def wide(self, s: Compute) -> None:
        later = any(s.out.name in {x.tensor.name for x in loads_of(t)} for t in self.found.order)
        w, e = self.e.writer, self.e
        if later:
            name = self.arrays[s.out.name] = w.fresh("r")
            w.write(f"{VALUES[s.out.dtype]} {name}[{self.turns * self.method.vector}]{{}};")
            w.define(name)
        # A group without a row has the last one's, and may find what that row's own group has made of it: it stores nothing.
        with self.each_turn(live=e.is_stored(s.out)) as block:
            block.names.update(self.names)
            with e.vector(self.method.vector):
                self._own(s)
                point = self.point(s)
                e.settle(s, point, e.body(s.body, point), s.body.dtype, used=later)
                if later:
                    w.write(f"{self._element(s.out.name)} = {e.registers[s.out.name]};")
        e.registers.pop(s.out.name, None)

    def reduction(self, s: Compute, number: int) -> None:
        e, w, lanes = self.e, self.e.writer, self.method.lanes
        op = f"mt::{COMBINER[str(s.combiner)]}<{VALUES[s.body.dtype]}>"
        part = w.fresh("part")
        w.write(f"{op}::Part {part}[1] = {{{op}::identity()}};")
        with self.each_turn() as block:
            block.names.update(self.names)
            with e.vector(self.method.vector):
                self._own(s)
                text = bare(e.body(s.body, self.point(s)))
                w.write(f"{part}[0] = {op}::combine({part}[0], {text});")
        far = lanes > e.target.warp
        warps = e.plan.launch.threads // e.target.warp
        scratch = (
            f"scratch + {self.site.step.scratch + number * warps * PART}" if far else "nullptr"
        )
        w.write(f"mt::across<{op}, {lanes}, 1, true>({part}, {scratch});")
        self._known(s, f"{part}[0]")

    def narrow(self, s: Compute) -> None:
        self._known(s, self.e.body(s.body, self.point(s)))

    def _known(self, s: Compute, text: str) -> None:
        """A value that all lanes of a row have; one of them stores it, if it is stored."""
        e, w = self.e, self.e.writer
        value = e.made(s, text, s.body.dtype, used=True)
        if e.is_stored(s.out):
            test = "group_lane == 0" if self.whole else "live && group_lane == 0"
            with w.open(f"if ({test})", fence=True):
                e.put(s, self.point(s), value)

    def _own(self, s: Compute) -> None:
        """The wide values that `s` reads, as variables of the current element."""
        w = self.e.writer
        for x in dict.fromkeys(x.tensor for x in loads_of(s) if x.tensor.name in self.arrays):
            variable = w.fresh("x")
            w.write(f"const {VALUES[x.dtype]} {variable} = {self._element(x.name)};")
            w.define(variable)
            self.e.hold(x.name, variable)

    def _element(self, name: str) -> str:
        vector = self.method.vector
        return f"{self.arrays[name]}[turn * {vector}{' + lane' if vector > 1 else ''}]"


def write_rows(e: VectorEmitter, site: Site, method: HoldRows, await_: str) -> None:
    """Groups of lanes, each with a row at a time.

    await_: the functor that waits for what the step reads.
    """
    computes = [s for n in site.step.computes if isinstance(s := e.computes[n], Compute)]
    found = rowwise(computes)
    if found is None:
        raise InternalError(f"step {site.step.computes} does not work row by row")
    groups = e.plan.launch.threads // method.lanes
    row = site.ranges[0] if found.rows else None
    rows = row.variable.extent if row else 1
    rounds = -(-rows // groups)
    whole = rounds * groups == rows and (row is None or row.count == str(rows))
    vectors = math.prod(found.span) // method.vector
    step = _Rows(e, site, method, found, turns(found, method), vectors, whole)
    w = e.writer
    with w.open("", fence=True):
        w.write(
            f"const idx group_lane = threadIdx.x % {method.lanes}, group = threadIdx.x / {method.lanes};"
        )
        w.define("group_lane")
        w.define("group")
        with w.open(
            f"for (idx round = 0; round < {rounds}; ++round)", ["round"], fence=True
        ) as block:
            block.pragma = "#pragma unroll 1"
            number = f"round * {groups} + group" if rounds > 1 else "group"
            if row is not None:
                v = row.variable.name
                w.write(
                    f"const idx {v} = {number if whole else f'mt_min_idx({number}, {row.count} - 1)'};"
                )
                w.define(v)
            if not whole:
                w.write(f"const bool live = {number} < {row.count if row else 1};")
            _fetch(step, f"if (round == 0) {await_}();" if rounds > 1 else f"{await_}();")
            sums = 0
            for s in found.order:
                if found.wide(s):
                    step.wide(s)
                elif s.reduce:
                    step.reduction(s, sums)
                    sums += 1
                else:
                    step.narrow(s)
            if rounds > 1 and method.lanes > e.target.warp:
                w.write("mt::block_barrier();")
    e.forget()


def _fetch(step: _Rows, await_: str) -> None:
    """Asks for all that the lane's elements read, before any of it is used: what no launch changes, then the statement
    `await_`, then the rest."""
    e = step.e
    bodies = [substitute(s.body, step.point(s)) for s in step.found.order if step.found.along(s)]
    wanted = known_ahead(e, bodies)
    steady = [x for x in wanted if x.tensor.name in e.constant]
    _ask(step, {x: wanted.pop(x) for x in steady}, "rows_steady")
    e.writer.write(await_)
    _ask(step, wanted, "rows_held")


def _ask(step: _Rows, wanted: Mapping[Load, Expr], name: str) -> None:
    """Loads `wanted` into `name`, a member for each turn."""
    e, w = step.e, step.e.writer
    if not wanted:
        return
    with w.open(f"auto fetch_{name} = [&](idx start)", ["start"], fence=True, tail=";"):
        step.names |= e.held(wanted, step.method.vector, f"{name}[turn]")
    w.write(f"decltype(fetch_{name}(0)) {name}[{step.turns}]{{}};")
    with step.each_turn():
        w.write(f"{name}[turn] = fetch_{name}(start);")
