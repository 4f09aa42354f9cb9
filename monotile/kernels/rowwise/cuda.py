"""Rows in registers: what a row reads is asked for at once, its sums meet across the lanes, and nothing lies on chip.

Fetched rows_steady[2], rows_held[2];                what the lane reads of its row, an element for each turn
mt::Words<Fetched> early_rows_steady[2];             the same, asked for before the hand-off
mt::Words<Fetched> next_rows_held[2];                of the next round's row, asked for before this one's sums
mt::Words<Fetched> early_all_steady[2];              what all rows read alike, asked for before several rounds
float x_3[2 * 8];                                    a wide value, for whoever reads it later
part[0] = ...; mt::across<mt::Sum<float>, 64, 1>;    a sum, which all lanes of the row then know
mt::moments<64, 8, 64>(values, ...);                 a sum and that of the squared distances from the mean
"""

import math
from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from monotile.analysis.dependence import loads_of
from monotile.codegen.base import VALUES
from monotile.codegen.block import BlockEmitter
from monotile.codegen.site import Range, Site, unflatten
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter, lane_of
from monotile.codegen.writer import Block
from monotile.ir.expr import Axis, Expr, Load, add, idx, mul, substitute
from monotile.ir.program import Compute
from monotile.kernels.common.combiners import COMBINER
from monotile.kernels.common.cuda_prefetch import known_ahead
from monotile.kernels.rowwise.cuts import PART, last_lanes, turns
from monotile.kernels.rowwise.match import Rowwise
from monotile.kernels.rowwise.method import HoldRows


class _Asked(NamedTuple):
    """Names of what was asked for: once, to be taken as "early"; in every round for the next one, as "next"."""

    once: tuple[str, ...] = ()
    by_round: tuple[str, ...] = ()


@dataclass(eq=False)
class _Rows:
    """A step on its way. row: the range of rows. groups: of lanes. rounds: in which these take rows. turns: vectors that a
    lane takes of a row, of its `vectors`. whole: every group has its row. names: texts of what was asked for. arrays: of
    wide values."""

    e: VectorEmitter
    site: Site
    method: HoldRows
    found: Rowwise
    row: Range | None
    groups: int
    rounds: int
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

    @property
    def packed(self) -> bool:
        """Whether what is asked for ahead waits in whole words: single elements are not taken apart anyway."""
        return self.method.vector > 1

    def number(self, round_: str) -> str:
        """Text of the row of the lane's group in a round."""
        return f"{round_} * {self.groups} + group" if self.rounds > 1 else "group"

    def take_row(self, number: str) -> None:
        """The variable of the current row; the last one where there is none of this number."""
        if self.row is None:
            return
        v, w = self.row.variable.name, self.e.writer
        text = number if self.whole else f"mt_min_idx({number}, {self.row.count} - 1)"
        w.write(f"const idx {v} = {text};")
        w.define(v)

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
        w.write(f"mt::across<{op}, {lanes}, 1, true>({part}, {self._scratch(number)});")
        self._known(s, f"{part}[0]")

    def moments(self, s: Compute, squares: Compute, number: int) -> None:
        """Reduction `s` with `squares`, which are of what it adds up."""
        e, w, vector = self.e, self.e.writer, self.method.vector
        values, both = w.fresh("values"), w.fresh("moments")
        w.write(f"float {values}[{self.turns * vector}]{{}};")
        with self.each_turn() as block:
            block.names.update(self.names)
            with e.vector(vector):
                self._own(s)
                w.write(f"{self._place(values)} = {bare(e.body(s.body, self.point(s)))};")
        kind = f"{self.method.lanes}, {vector}, {last_lanes(self.found, self.method)}"
        w.write(
            f"const mt::Moments {both} = mt::moments<{kind}>({values}, {self._scratch(number)});"
        )
        w.define(both)
        self._known(s, f"{both}.sum")
        self._known(squares, f"{both}.squares")

    def _scratch(self, number: int) -> str:
        """Where the warps of a group put reduction `number` together."""
        warp = self.e.target.warp
        at = self.site.step.scratch + number * (self.e.plan.launch.threads // warp) * PART
        return f"scratch + {at}" if self.method.lanes > warp else "nullptr"

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
        return self._place(self.arrays[name])

    def _place(self, array: str) -> str:
        """The current element's in `array`."""
        vector = self.method.vector
        return f"{array}[turn * {vector}{' + lane' if vector > 1 else ''}]"


def write(e: BlockEmitter, site: Site) -> None:
    """Groups of lanes, each with a row at a time."""
    method, await_ = site.step.method, e.await_
    assert isinstance(method, HoldRows)
    step = _step(e, site, method)
    w, lanes = e.writer, method.lanes
    with w.open("", fence=True):
        w.write(f"const idx group_lane = threadIdx.x % {lanes}, group = threadIdx.x / {lanes};")
        w.define("group_lane")
        w.define("group")
        ahead = _ask_first(step, f"{await_}();") if step.rounds > 1 else _Asked()
        head = f"for (idx round = 0; round < {step.rounds}; ++round)"
        with w.open(head, ["round"], fence=True) as block:
            block.pragma = "#pragma unroll 1"
            number = step.number("round")
            step.take_row(number)
            if not step.whole:
                w.write(f"const bool live = {number} < {step.row.count if step.row else 1};")
            if step.rounds > 1:
                _ask_next(step, ahead.by_round)
            else:
                ahead = _ask_all(step, f"{await_}();")
            _take(step, ahead.once, "early")
            sums = 0
            pairs = {total: squares for squares, total in method.moments}
            for s in step.found.order:
                if step.found.wide(s):
                    step.wide(s)
                elif s.out.name in pairs.values():
                    continue  # known with its sum
                elif s.reduce:
                    squares = pairs.get(s.out.name)
                    if squares is not None:
                        step.moments(s, step.found.by_name(squares), sums)
                    else:
                        step.reduction(s, sums)
                    sums += 1
                else:
                    step.narrow(s)
            if step.rounds > 1 and lanes > e.target.warp:
                w.write("mt::block_barrier();")
    e.forget()


def _step(e: VectorEmitter, site: Site, method: HoldRows) -> _Rows:
    order = tuple(s for n in method.order if isinstance(s := e.computes[n], Compute))
    found = Rowwise(method.rows, method.span, order)
    groups = e.plan.launch.threads // method.lanes
    row = site.ranges[0] if found.rows else None
    rows = row.variable.extent if row else 1
    rounds = -(-rows // groups)
    whole = rounds * groups == rows and (row is None or row.count == str(rows))
    vectors = math.prod(found.span) // method.vector
    return _Rows(e, site, method, found, row, groups, rounds, turns(found, method), vectors, whole)


def _wanted(step: _Rows) -> tuple[dict[Load, Expr], dict[Load, Expr]]:
    """All that the lane's elements read, with its conditions: what no launch changes, and the rest."""
    e = step.e
    bodies = [substitute(s.body, step.point(s)) for s in step.found.order if step.found.along(s)]
    steady, rest = dict[Load, Expr](), dict[Load, Expr]()
    for x, when in known_ahead(e, bodies).items():
        (steady if x.tensor.name in e.constant else rest)[x] = when
    return steady, rest


def _ask_all(step: _Rows, await_: str) -> _Asked:
    """Asks for all that the lane's elements read, before any of it is used: what no launch changes, then the statement
    `await_`, then the rest."""
    steady, rest = _wanted(step)
    early = _ask_early(step, steady, "rows_steady")
    step.e.writer.write(await_)
    _ask(step, rest, "rows_held")
    return _Asked(early)


def _ask_first(step: _Rows, await_: str) -> _Asked:
    """The same before several rounds: asks for what all rows read alike, and for the first round's rows."""
    steady, rest = _wanted(step)
    one = _ask_apart(step, steady, "steady")
    step.e.writer.write(await_)
    two = _ask_apart(step, rest, "held")
    return _Asked(one.once + two.once, one.by_round + two.by_round)


def _ask_apart(step: _Rows, wanted: Mapping[Load, Expr], name: str) -> _Asked:
    """Loads `wanted`, what depends on the row apart from what does not."""
    e, row = step.e, step.row
    assert row is not None
    v = row.variable.name
    own = {x: when for x, when in wanted.items() if v in e.variables(x) | e.variables(when)}
    every = {x: when for x, when in wanted.items() if x not in own}
    once = _ask_early(step, every, f"all_{name}")
    if not own:
        return _Asked(once)
    name = f"rows_{name}"
    _write_fetch(step, own, name, [v, "start"])
    _declare_later(step, name, "next")
    with e.writer.open("", fence=True):
        step.take_row("group")
        _fetch_rows(step, name)
    return _Asked(once, (name,))


def _ask_next(step: _Rows, names: Sequence[str]) -> None:
    """What was asked for is this round's; asks for the next one's before any of it is used."""
    if not names:
        return
    _take(step, names, "next")
    with step.e.writer.open(f"if (round + 1 < {step.rounds})", fence=True):
        step.take_row(step.number("(round + 1)"))
        for name in names:
            _fetch_rows(step, name)


def _take(step: _Rows, names: Sequence[str], when: str) -> None:
    """What was asked for as `when`_`name` is there as `name`."""
    w = step.e.writer
    for name in names:
        w.write(f"{_kind(name, when)} {name}[{step.turns}];")
        head = f"for (idx turn = 0; turn < {step.turns}; ++turn)"
        with w.open(head, ["turn"], fence=True) as block:
            block.pragma = "#pragma unroll"
            w.write(f"{name}[turn] = {when}_{name}[turn]{'.whole()' * step.packed};")


def _fetch_rows(step: _Rows, name: str) -> None:
    """Asks for what the row reads that has just been taken."""
    assert step.row is not None
    _fetch_later(step, name, "next", f"{step.row.variable.name}, start")


def _ask_early(step: _Rows, wanted: Mapping[Load, Expr], name: str) -> tuple[str, ...]:
    """Asks for loads `wanted` before the hand-off; gives the names to be taken behind it."""
    if not wanted:
        return ()
    _write_fetch(step, wanted, name, ["start"])
    _declare_later(step, name, "early")
    _fetch_later(step, name, "early", "start")
    return (name,)


def _kind(name: str, when: str) -> str:
    """The type of what `fetch_name` gives, which takes the row too where it is asked for the next one."""
    return f"decltype(fetch_{name}({'0, 0' if when == 'next' else '0'}))"


def _declare_later(step: _Rows, name: str, when: str) -> None:
    kind = _kind(name, when)
    kind = f"mt::Words<{kind}>" if step.packed else kind
    step.e.writer.write(f"{kind} {when}_{name}[{step.turns}]{{}};")


def _fetch_later(step: _Rows, name: str, when: str, given: str) -> None:
    with step.each_turn():
        call = f"fetch_{name}({given})"
        call = f"mt::words({call})" if step.packed else call
        step.e.writer.write(f"{when}_{name}[turn] = {call};")


def _ask(step: _Rows, wanted: Mapping[Load, Expr], name: str) -> None:
    """Loads `wanted` into `name`, a member for each turn."""
    w = step.e.writer
    if not wanted:
        return
    _write_fetch(step, wanted, name, ["start"])
    w.write(f"decltype(fetch_{name}(0)) {name}[{step.turns}]{{}};")
    with step.each_turn():
        w.write(f"{name}[turn] = fetch_{name}(start);")


def _write_fetch(step: _Rows, wanted: Mapping[Load, Expr], name: str, given: Sequence[str]) -> None:
    """The function of the indices `given` that loads `wanted`, which is known as members of `name`."""
    e = step.e
    parameters = ", ".join(f"idx {v}" for v in given)
    with e.writer.open(f"auto fetch_{name} = [&]({parameters})", given, fence=True, tail=";"):
        step.names |= e.held(wanted, step.method.vector, f"{name}[turn]")
