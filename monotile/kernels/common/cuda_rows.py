"""Rows in registers: a row's operands are loaded at once, its sums are reduced across the lanes, and nothing is stored on chip.

Fetched rows_steady[2], rows_held[2];                the lane's elements of its row, one for each turn
mt::Words<Fetched> early_rows_steady[2];             the same, prefetched before the hand-off
mt::Words<Fetched> next_rows_held[2];                of the next round's row, prefetched before this one's sums
mt::Words<Fetched> early_all_steady[2];              operands that all rows share, prefetched before several rounds
float x_3[2 * 8];                                    a wide value, for its readers
part[0] = ...; mt::across<mt::Sum<float>, 64, 1>;    a sum, which all lanes of the row then have
mt::moments<64, 8, 64>(values, ...);                 a sum and that of the squared distances from the mean

A row may be computed from given values: the sums of a product, which are on chip.
"""

import functools
import math
from collections.abc import Generator, Hashable
from contextlib import contextmanager
from dataclasses import dataclass, field

from monotile.analysis.dependence import loads_of
from monotile.codegen.base import VALUES
from monotile.codegen.packs import lane_of
from monotile.codegen.site import Range, Site, unflatten
from monotile.codegen.spelling import bare
from monotile.codegen.vector import VectorEmitter
from monotile.codegen.writer import Block
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Expr, add, idx, loads, mul, walk
from monotile.ir.program import Compute
from monotile.kernels.common.combiners import COMBINER
from monotile.kernels.common.register_rows import PART, HoldsRows, last_lanes, turns
from monotile.kernels.common.rowwise import POSITIONS, Rowwise


@dataclass(eq=False)
class Rows:
    """The state of emitting a step with rows in registers. row: the range of rows. groups: groups of lanes, each with a row at a time.
    rounds: iterations over the rows. turns: vectors of a lane, of a row's `vectors`. whole: every group has a row in every round. given:
    text of a vector of given values, at `start`. names: texts of loaded operands. arrays: arrays of wide values."""

    e: VectorEmitter
    site: Site
    method: HoldsRows
    found: Rowwise
    row: Range | None
    groups: int
    rounds: int
    turns: int
    vectors: int
    whole: bool
    given: str = ""
    names: dict[Hashable, str] = field(default_factory=dict[Hashable, str])
    arrays: dict[str, str] = field(default_factory=dict[str, str])

    def point(self, s: Compute) -> dict[str, Expr]:
        """The axes of `s` at the current row, and at the current position in it."""
        anchor = self.site.anchor
        rows = zip(s.axes, anchor.axes, strict=False)
        out = dict(self.e.loop_axes)
        out |= {a.name: self.site.point[b.name] for a, b in [*rows][: self.found.rows]}
        out |= {a.name: idx(0) for a in s.axes[self.found.rows :]}
        return out | unflatten(self._position, self.found.along(s))

    @property
    def _position(self) -> Expr:
        """The current element's position in its row."""
        start = Axis("start", self.vectors) if self.vectors > 1 else idx(0)
        return add(mul(start, idx(self.method.vector)), lane_of(self.method.vector))

    @property
    def packed(self) -> bool:
        """Whether prefetched vectors are kept in whole words; single elements need no packing."""
        return self.method.vector > 1

    def number(self, round_: str) -> str:
        """Text of the row index of the lane's group in a round."""
        return f"{round_} * {self.groups} + group" if self.rounds > 1 else "group"

    def take_row(self, number: str) -> None:
        """Declares the current row, clamped to the last one."""
        if self.row is None:
            return
        v, w = self.row.variable.name, self.e.writer
        text = number if self.whole else f"mt_min_idx({number}, {self.row.count} - 1)"
        w.write(f"const idx {v} = {text};")
        w.define(v)

    @contextmanager
    def each_turn(self, *, live: bool = False) -> Generator[Block]:
        """An unrolled loop over the lane's vectors. live: only for rows that exist."""
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

    def evaluate(self) -> None:
        """Writes all computes of the current row."""
        sums = 0
        pairs = {total: squares for squares, total in self.method.moments}
        for s in self.found.order:
            if self.found.wide(s):
                self._wide(s)
            elif s.out.name in pairs.values():
                continue  # known with its sum
            elif s.reduce:
                squares = pairs.get(s.out.name)
                if squares is not None:
                    self._moments(s, self.found.by_name(squares), sums)
                else:
                    self._reduction(s, sums)
                sums += 1
            else:
                self._narrow(s)

    def _wide(self, s: Compute) -> None:
        readers = self.found.evaluated
        later = any(s.out.name in {x.tensor.name for x in loads_of(t)} for t in readers)
        w, e = self.e.writer, self.e
        if later:
            name = self.arrays[s.out.name] = w.fresh("r")
            w.write(f"{VALUES[s.out.dtype]} {name}[{self.turns * self.method.vector}]{{}};")
            w.define(name)
        # A group without a row has the last one's, and may find what that row's own group has made of it: it stores nothing.
        with self.each_turn(live=e.is_stored(s.out)) as block:
            block.names.update(self.names)
            given = s.out.name == self.found.given
            if given:
                w.write(f"const auto given = {self.given};")
            with e.vector(self.method.vector):
                self._own(s)
                point = self.point(s)
                text = f"given[{self._lane}]" if given else e.body(s.body, point)
                e.settle(s, point, text, s.body.dtype, used=later)
                if later:
                    w.write(f"{self._element(s.out.name)} = {e.registers[s.out.name]};")
        e.registers.pop(s.out.name, None)

    def _reduction(self, s: Compute, number: int) -> None:
        e, w, lanes = self.e, self.e.writer, self.method.lanes
        op = f"mt::{COMBINER[str(s.combiner)]}<{VALUES[s.body.dtype]}>"
        part = w.fresh("part")
        w.write(f"{op}::Part {part}[1] = {{{op}::identity()}};")
        with self.each_turn() as block:
            block.names.update(self.names)
            with e.vector(self.method.vector):
                self._own(s)
                text = bare(e.body(s.body, self.point(s)))
                if s.combiner in POSITIONS:
                    text = f"{op}::Part{{{text}, (int32_t){bare(e.index(self._position))}}}"
                w.write(f"{part}[0] = {op}::combine({part}[0], {text});")
        w.write(f"mt::across<{op}, {lanes}, 1, true>({part}, {self._scratch(number)});")
        if s.combiner in POSITIONS:
            self._known(s, f"(int64_t)mt_max_i32({part}[0].position, 0)", DType.I64)
        else:
            self._known(s, f"{part}[0]", s.body.dtype)

    def _moments(self, s: Compute, squares: Compute, number: int) -> None:
        """Writes the reduction `s` together with `squares`, the sum of squared differences from its mean."""
        e, w, vector = self.e, self.e.writer, self.method.vector
        values, both = w.fresh("values"), w.fresh("moments")
        w.write(f"float {values}[{self.turns * vector}]{{}};")
        with self.each_turn() as block:
            block.names.update(self.names)
            with e.vector(vector):
                self._own(s)
                w.write(f"{self._place(values)} = {bare(e.body(s.body, self.point(s)))};")
        kind = (
            f"{self.method.lanes}, {vector}, {last_lanes(math.prod(self.found.span), self.method)}"
        )
        w.write(
            f"const mt::Moments {both} = mt::moments<{kind}>({values}, {self._scratch(number)});"
        )
        w.define(both)
        self._known(s, f"{both}.sum", s.body.dtype)
        self._known(squares, f"{both}.squares", squares.body.dtype)

    def _scratch(self, number: int) -> str:
        """Text of the scratch in which the warps of a group combine reduction `number`."""
        warp = self.e.target.warp
        at = self.site.step.scratch + number * (self.e.plan.launch.threads // warp) * PART
        return f"scratch + {at}" if self.method.lanes > warp else "nullptr"

    def _narrow(self, s: Compute) -> None:
        self._known(s, self.e.body(s.body, self.point(s)), s.body.dtype)

    def _known(self, s: Compute, text: str, dtype: DType) -> None:
        """Defines a value that all lanes of a row have, of type `dtype`; one lane stores it, if it is stored."""
        e, w = self.e, self.e.writer
        value = e.made(s, text, dtype, used=True)
        if s.out.name in self._divisors:
            by = e.divisors[s.out.name] = w.fresh("by")
            w.write(f"const mt::Divisor {by}({value});")
            w.define(by)
        if e.is_stored(s.out):
            test = "group_lane == 0" if self.whole else "live && group_lane == 0"
            with w.open(f"if ({test})", fence=True):
                e.put(s, self.point(s), value)

    @functools.cached_property
    def _divisors(self) -> frozenset[str]:
        """Tensors with one element per row by which wide values are divided."""
        wide = [s for s in self.found.evaluated if self.found.along(s)]
        sides = [x.b for s in wide for x in walk(s.body) if isinstance(x, Binary) and x.op == "div"]
        found = [x for side in sides for x in loads(side) if x.dtype.compute is DType.F32]
        own = {s.out.name: s for s in self.found.order}
        names = {x.tensor.name for x in found if x.tensor.name in own}
        return frozenset(n for n in names if not self.found.wide(own[n]))

    def _own(self, s: Compute) -> None:
        """Declares the wide values that `s` reads, as variables of the current element."""
        w = self.e.writer
        if s.out.name == self.found.given:
            return
        for x in dict.fromkeys(x.tensor for x in loads_of(s) if x.tensor.name in self.arrays):
            variable = w.fresh("x")
            w.write(f"const {VALUES[x.dtype]} {variable} = {self._element(x.name)};")
            w.define(variable)
            self.e.hold(x.name, variable)

    def _element(self, name: str) -> str:
        return self._place(self.arrays[name])

    def _place(self, array: str) -> str:
        """Text of the current element of `array`."""
        return f"{array}[turn * {self.method.vector}{' + lane' if self.method.vector > 1 else ''}]"

    @property
    def _lane(self) -> str:
        return "lane" if self.method.vector > 1 else "0"


def rows_of(
    e: VectorEmitter,
    site: Site,
    method: HoldsRows,
    row: Range | None,
    threads: int,
    given: str = "",
) -> Rows:
    """The state for a step whose rows `threads` threads share. given: text of a vector of given values, at `start`; "" if there are none."""
    order = site.named(method.order)
    found = Rowwise(method.rows, method.span, order, site.anchor.out.name if given else "")
    groups = threads // method.lanes
    rows = row.variable.extent if row else 1
    rounds = -(-rows // groups)
    whole = rounds * groups == rows and (row is None or row.count == str(rows))
    length = math.prod(found.span)
    vectors = length // method.vector
    return Rows(e, site, method, found, row, groups, rounds, turns(length, method), vectors, whole, given)  # fmt: skip


@contextmanager
def each_round(step: Rows) -> Generator[None]:
    """The loop over rounds, in each of which a group has one row."""
    w = step.e.writer
    head = f"for (idx round = 0; round < {step.rounds}; ++round)"
    with w.open(head, ["round"], fence=True) as block:
        block.pragma = "#pragma unroll 1"
        number = step.number("round")
        step.take_row(number)
        if not step.whole:
            w.write(f"const bool live = {number} < {step.row.count if step.row else 1};")
        yield
