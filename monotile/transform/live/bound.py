"""Derives bounds for Computes from masks: elements that a mask makes constant are neither computed nor read.

`where(key <= position, x, -inf)` is dead from position + 1 on. Forward, `exp` of it is 0 there, and adds nothing to a sum, so the sum is
bounded. Backward, a tensor that only bounded Computes read is bounded as they are: the products of queries and keys. The mask itself
stays, so a bound need not be exact: of bounds that depend on rows or sequences, the widest is taken. Where a family can give each task
its own walk (`Apart`), the bound is the widest of a run of rows, or each row's own.
"""

from collections.abc import Callable, Iterator, Sequence
from math import prod

import msgspec

from monotile.analysis.dead import (
    Side,
    Value,
    alone,
    clamped,
    combined,
    converted,
    is_low,
    left_out,
    side_of,
    sides,
    value_where,
)
from monotile.analysis.dependence import loads_of
from monotile.analysis.unconditional import holding
from monotile.ir.bounds import find_violation
from monotile.ir.expr import (
    Axis,
    Binary,
    Const,
    Expr,
    Load,
    Select,
    SizeTensor,
    Tensor,
    add,
    axes_of,
    binary,
    idx,
    loads,
    rebuild,
)
from monotile.ir.held import held_before
from monotile.ir.program import (
    At,
    Compute,
    Ends,
    Live,
    Part,
    Program,
    Scatter,
    Statement,
    statements,
)
from monotile.transform.live.demand import demands
from monotile.transform.live.places import START
from monotile.transform.live.scalars import Rows, Scalars, cuts, own_runs
from monotile.transform.live.segments import segments, sides_of
from monotile.transform.rewrite import map_program
from monotile.transform.simplify.simplify import simplify_expr

May = Callable[[Compute], bool]
Apart = Callable[[Compute, Rows, bool], bool]
LEAST = 8  # points of an axis from which on bounds are worth it
MOST = 1 << 20  # points of the rows whose bounds are compared


class Dead(msgspec.Struct, frozen=True):
    """Beyond `ends` along an axis all elements, or terms, have the same value. at: as in `Live`."""

    ends: Ends
    value: Value
    at: Rows = ()


def bound_live(
    program: Program,
    may: May = lambda _: True,
    apart: Apart = lambda _c, _at, _wide: False,
    run: int = 0,
) -> Program:
    """`program` with Computes bounded by values of the call. may: whether a Compute may skip terms. apart: whether it may skip different
    terms at each point of some of its axes; wide: its body is valid for more terms, so that it may include some of those. run: rows
    whose ends may be combined."""
    finder = _Finder(program, may, apart, run)
    for s in statements(program.body):
        if isinstance(s, Compute):
            finder.forward(s)
        elif isinstance(s, Scatter):
            finder.held(s)
    if finder.clamps:
        finder.program = map_program(program, finder.clamped)
    partial = bool(program.partial) or _held(program)
    while finder.terms or finder.clamps or partial:
        finder.backward()
        half = finder.half()
        if not half:
            break
        finder.terms = {n: found for n, found in finder.terms.items() if n not in half}
    if not (finder.terms or finder.clamps or partial) or not finder.live:
        return program
    taken = {t for found in finder.live.values() for x in found for t in x.ends if t is not None}
    taken |= {x.tensor for e in finder.clamps.values() for x in loads(e)}

    def bounded(s: Statement) -> Statement:
        found = finder.live.get(s.out.name) if isinstance(s, Compute) else None
        if not found or not isinstance(s, Compute):
            return s
        return msgspec.structs.replace(s, live=tuple(found), body=finder.within(s, found))

    return map_program(finder.scalars.insert(finder.program, taken), bounded)


class _Finder:
    """terms: bounds of reductions, by the name of the Compute. clamps: indices clamped to a bound, and the same without a run-time
    check. live: all derived bounds. scalars: those that may be computed. wide: ends of whole runs, which need not be exact, with a
    size that bounds them."""

    def __init__(self, program: Program, may: May, apart: Apart, run: int) -> None:
        self.program, self.may, self.apart, self.run = program, may, apart, run
        self.mixed: set[tuple[str, int]] = set()
        self.terms: dict[str, list[Live]] = {}
        self.clamps: dict[Expr, Expr] = {}
        self.live: dict[str, list[Live]] = {}
        self.scalars = Scalars(program)
        self.computes = {s.out.name: s for s in statements(program.body) if isinstance(s, Compute)}
        self.wide: dict[Ends, Tensor | None] = {}
        self._dead: dict[str, dict[int, list[tuple[Part, Value]]]] = {}  # by tensor and dimension

    def forward(self, c: Compute) -> None:
        """The dead elements of `c`, and its live terms."""
        if 0 in c.out.shape:
            return
        for p, axis in enumerate((*c.axes, *c.reduce)):
            if axis.extent < LEAST:
                continue
            found = [*self._inherited(c, axis), *self._stated(c, axis)]
            if axis in c.reduce:
                good = [d for d in found if left_out(c.combiner, c.body, d.value)]
                good = [d for d in good if self._allowed(c, d)]
                best = max(
                    good,
                    key=lambda d: (bool(d.at), sum(t is not None for t in d.ends)),
                    default=None,
                )
                if best is not None:
                    self.terms.setdefault(c.out.name, []).append(self._live(axis, best))
                continue
            for d in found:
                value = d.value if c.combiner is None else combined(c.combiner, d.value)
                if value is not None and c.out.dtype is not c.body.dtype:
                    value = converted(value, c.out.dtype)
                part = self._live(axis, d).part(c.axes)
                if value is not None and part is not None:
                    by_axis = self._dead.setdefault(c.out.name, {})
                    by_axis.setdefault(p, []).append((part, value))

    def _allowed(self, c: Compute, d: Dead) -> bool:
        return self.apart(c, d.at, d.ends in self.wide) if d.at else self.may(c)

    def _live(self, axis: Axis, d: Dead) -> Live:
        return Live(axis, *d.ends, d.at, self.wide.get(d.ends))

    def held(self, s: Scatter) -> None:
        """Indices of `s` that are clamped to the points that are written, whichever tensor they are for: parts of a concatenation are shorter. Where
        there are none, nothing is read."""
        for x in loads_of(s):
            for i in x.index:
                match i:
                    case Binary(
                        "min", Axis() as axis, Binary("sub", Load(SizeTensor() as n), Const(1))
                    ) if n.least > 0 and n.most <= axis.extent:
                        pass  # as it is
                    case Binary("min", Axis() as axis, Binary("sub", n, Const(1))) if loads(
                        n
                    ) and not axes_of(n):
                        side = side_of(Binary("lt", axis, n), axis)
                        assert side is not None
                        end = self.scalars.end("live_end", clamped(side, 0, axis.extent), ())
                        self.clamps[i] = Binary("min", axis, Binary("sub", Load(end, ()), idx(1)))
                    case _:
                        pass

    def clamped(self, s: Statement) -> Statement:
        """`s` with these scalars in place of those that may be zero."""

        def go(e: Expr) -> Expr:
            return self.clamps.get(e) or rebuild(e, go)

        if not isinstance(s, Scatter):
            return s
        return msgspec.structs.replace(s, index=tuple(map(go, s.index)), value=go(s.value))

    def _inherited(self, c: Compute, axis: Axis) -> list[Dead]:
        """Where the operands of `c` are dead along `axis`."""
        values: dict[tuple[Ends, Rows], dict[Load, Value]] = {}
        for x in loads_of(c):
            for p, found in self._dead.get(x.tensor.name, {}).items():
                for part, value in found:
                    own = ((x.index[q], run) for q, run in part.at)
                    at = tuple(At(i, run) for i, run in own if isinstance(i, Axis) and i in c.axes)
                    if x.index[p] != axis or len(at) != len(part.at):
                        continue
                    longer = x.tensor.shape[p] > axis.extent
                    ends = self._within(part, axis.extent) if longer else part.ends
                    if ends is not None:
                        values.setdefault((ends, at), {})[x] = value
        out: list[Dead] = []
        for (ends, at), known in values.items():
            value = value_where(
                c.body, lambda e, known=known: known.get(e) if isinstance(e, Load) else None
            )
            out += [Dead(ends, value, at)] if value is not None else []
        return out

    def _within(self, part: Part, extent: int) -> Ends | None:
        """The ends of a part of a longer dimension, which is read so far: None where they may be beyond that."""
        first, last = part.ends
        if first is not None or last is None or part.at:
            return None
        if isinstance(last, SizeTensor):
            return part.ends if last.most <= extent else None
        made = next((m for m in self.scalars.made if m.out == last), None)
        if made is None:
            return None
        rows = tuple(At(a) for a in made.reduce)
        body = binary("min", made.body, idx(extent))
        return None, self.scalars.end("live_end", body, rows, combiner="max")

    def _stated(self, c: Compute, axis: Axis) -> list[Dead]:
        """Where comparisons of `axis` are false."""
        found: dict[tuple[type, Value], list[Side]] = {}

        def kept(side: Side, known: dict[tuple[type, Value], list[Side]]) -> None:
            value = value_where(c.body, lambda e: False if e == side.term else None)
            if value is not None:
                known.setdefault((type(value), value), []).append(side)

        for side in sides(c.body, axis):
            kept(side, found)
        more = {key: [*s] for key, s in found.items()}
        if self.run:
            for x in segments(c.body, axis, self.computes):
                for side in sides_of(x, axis, c, self.scalars):
                    kept(side, more)
        out: list[Dead] = []
        for key, s in more.items():
            value, low = key[1], is_low(key[1])
            if low and not alone(c.body, [x.term for x in s]):
                continue
            if key in found:
                out += [
                    Dead(e, value, at) for e, at in self._ends(c, axis, found[key], guarded=low)
                ]
            out += [Dead(e, value, at) for e, at in self._of_runs(c, axis, s, guarded=low)]
        return out

    def _ends(
        self, c: Compute, axis: Axis, found: list[Side], *, guarded: bool
    ) -> Iterator[tuple[Ends, Rows]]:
        """Scalars for the ends: the widest bounds of any row of `c`; and those of each row, where they depend on some. guarded:
        everything is live if some row has no live element."""
        if len(found) == 1 and (size := self._size(found[0], axis)) is not None:
            yield (None, size), ()
            return
        first, last = _row_ends(found, axis.extent, 0)
        rows = self._rows(c, (first, last))
        if rows and not guarded and {x.axis for x in rows} <= {*c.axes}:
            last = last if first is None or last is None else binary("max", last, first)
            kept = own_runs(rows, (first, last))
            yield self.scalars.own(first, last, kept), kept
        first, last = _any_ends(found, axis.extent, guarded=guarded)
        if prod(x.extent for x in rows) <= MOST:
            yield self.scalars.ends(first, last, rows, ()), ()

    def _of_runs(
        self, c: Compute, axis: Axis, found: list[Side], *, guarded: bool
    ) -> Iterator[tuple[Ends, Rows]]:
        """The widest bounds of each run of rows of `c`."""
        first, last = _any_ends(found, axis.extent, guarded=guarded)
        rows = self._rows(c, (first, last))
        few = prod(x.extent for x in rows) <= MOST
        if not self.run or not few or not {x.axis for x in rows} <= {*c.axes}:
            return
        sizes = (self._size(s, axis) for s in found if not guarded)
        size = next((t for t in sizes if t is not None), None)
        if first is not None and last is not None and not guarded:
            first, last = _some_ends(found, axis.extent)
        for at in cuts(rows, self.run):
            ends = self.scalars.ends(first, last, rows, at, ordered=not guarded)
            self.wide.setdefault(ends, size)
            yield ends, at

    def within(self, c: Compute, live: Sequence[Live]) -> Expr:
        """The body of `c` without conditions that hold wherever it is live: comparisons that give a row's own end. Those that keep an index
        in range where it is dead stay."""
        true: set[Expr] = set()
        for x in (x for x in live if x.at and x.ends not in self.wide):
            for side in sides(c.body, x.axis):
                if (x.ends, x.at) in self._ends(c, x.axis, [side], guarded=False):
                    true.add(side.term)
        new = simplify_expr(holding(c.body, true)) if true else c.body
        return new if find_violation(new, tuple(axes_of(new))) is None else c.body

    def _rows(self, c: Compute, ends: tuple[Expr | None, Expr | None]) -> Rows:
        """The axes that `ends` depend on."""
        named = {a for e in ends if e is not None for a in axes_of(e)}
        return tuple(At(a) for a in (*c.axes, *c.reduce) if a in named)

    def _size(self, side: Side, axis: Axis) -> Tensor | None:
        """The size of the call that the end equals, where it cannot be beyond the axis."""
        match side.at.terms:
            case ((Load(SizeTensor() as t, ()), 1),) if side.end and side.by == 1:
                fits = side.at.constant == 0 and t.least >= 1 and t.most <= axis.extent
                return t if fits else None
            case _:
                return None

    def backward(self) -> None:
        """Bounds of tensors that only bounded Computes read."""
        found = demands(self.program, self.terms, self._seen, self.scalars.made)
        self.live, self.mixed = found.live, found.mixed

    def half(self) -> set[str]:
        """Computes that read a part of a tensor that others read whole: all of it exists, and families hold whole rows of it."""
        found: set[str] = set()
        for s in statements(self.program.body):
            if isinstance(s, Compute) and s.out.name in self.terms:
                axes = {x.axis for x in self.terms[s.out.name] if x.ends not in self.wide}
                for x in loads_of(s):
                    if any(
                        (x.tensor.name, p) in self.mixed for p, i in enumerate(x.index) if i in axes
                    ):
                        found.add(s.out.name)
        return found

    def _seen(self, ends: Ends, name: str) -> bool:
        """Whether the scalars are available where the Compute `name` runs."""
        made = {c.out: p for c, p in self.scalars.made.items()}
        places = self.scalars.places
        since = [made.get(t) or places.since.get(t.name, START) for t in ends if t is not None]
        return all(place.before(places.at[name]) for place in since)


def _held(program: Program) -> bool:
    """Whether a part of some tensor is read regardless of its reader's bounds."""
    return any(
        held_before(i) is not None
        for s in statements(program.body)
        if isinstance(s, (Compute, Scatter))
        for x in loads_of(s)
        for i in x.index
    )


def _any_ends(found: list[Side], extent: int, *, guarded: bool) -> tuple[Expr | None, Expr | None]:
    """The widest ends, with one point at least. guarded: everything, where a row has none."""
    first, last = _row_ends(found, extent, 0 if guarded else 1)
    if guarded:
        some = Binary("lt", first or idx(0), last or idx(extent))
        first = None if first is None else Select(some, first, idx(0))
        last = Select(some, last or idx(extent), idx(extent))
    elif first is not None and last is not None:
        last = binary("max", last, add(first, idx(1)))
    return first, last


def _some_ends(found: list[Side], extent: int) -> tuple[Expr, Expr]:
    """The widest ends of a run: a row without live points does not count; if no row has any, the first point."""
    first, last = _row_ends(found, extent, 0)
    assert first is not None
    assert last is not None
    some = Binary("lt", first, last)
    return Select(some, first, idx(extent - 1)), Select(some, last, idx(1))


def _row_ends(found: list[Side], extent: int, least: int) -> tuple[Expr | None, Expr | None]:
    """The latest beginning and the earliest end. least: points that each leaves at least."""
    first: Expr | None = None
    last: Expr | None = None
    for s in found:
        if s.end:
            at = clamped(s, least, extent)
            last = at if last is None else binary("min", last, at)
        else:
            at = clamped(s, 0, extent - least)
            first = at if first is None else binary("max", first, at)
    return first, last
