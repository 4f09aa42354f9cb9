"""Backward analysis from the results: which part of each tensor is read. A tensor that only bounded Computes read is bounded as they are.

A carried value is undefined where its initial value or the body's result is. So one bound is assumed for all four tensors of a carry,
that of its reader after the loop, and dropped if the body reads more.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from monotile.analysis.dependence import loads_of
from monotile.ir.expr import Axis, Binary, Expr, Load, Tensor, loads
from monotile.ir.held import held_before, tested
from monotile.ir.intervals import interval
from monotile.ir.program import (
    Branch,
    Compute,
    Ends,
    Live,
    Loop,
    Part,
    Program,
    Scatter,
    Statement,
    ends_of,
)
from monotile.transform.rewrite import Body

Read = tuple[Part | None, ...]  # along each dimension; None for all
Seen = Callable[[Ends, str], bool]  # whether scalars are available where a tensor is computed


class Demands(msgspec.Struct, frozen=True):
    """live: bounds by the name of the Compute, also of its terms. mixed: dimensions of which readers read different parts."""

    live: dict[str, list[Live]]
    mixed: set[tuple[str, int]]


def demands(
    program: Program,
    terms: Mapping[str, list[Live]],
    seen: Seen,
    besides: Iterable[Compute] = (),
) -> Demands:
    """terms: the given bounds. besides: Computes that also run, in full."""
    finder = _Finder(terms, seen)
    for c in besides:
        finder.statement(c)
    sizes = {t.name: t for t in program.inputs}
    for k, t in enumerate(program.outputs):
        along = program.defined_along(k)
        finder.read(t, tuple(Part((None, sizes[n])) if n else None for n in along))
    finder.body(program.body)
    return Demands(finder.live, finder.mixed)


class _Finder:
    """reads: what each reader reads of a tensor, by name. whole: tensors that are used other than by a Load, and not in part. indices:
    tensors of indices that have to be in range wherever they are read."""

    def __init__(self, terms: Mapping[str, list[Live]], seen: Seen) -> None:
        self.terms, self.seen = terms, seen
        self.live: dict[str, list[Live]] = {}
        self.mixed: set[tuple[str, int]] = set()
        self.reads: dict[str, list[Read]] = {}
        self.whole: set[str] = set()
        self.indices: set[str] = set()

    def read(self, t: Tensor, part: Read | None = None) -> None:
        if part is None or not any(part):
            self.whole.add(t.name)
        self._read(t, part)

    def _read(self, t: Tensor, part: Read | None) -> None:
        self.reads.setdefault(t.name, []).append(part or (None,) * len(t.shape))

    def along(self, t: Tensor) -> Read:
        """The union of the reads of `t`."""
        found = self.reads.get(t.name, [])
        out: list[Part | None] = []
        for p in range(len(t.shape)):
            ways = {r[p] for r in found}
            out.append(ways.pop() if len(ways) == 1 else None)
        return tuple(out)

    def body(self, body: Body) -> None:
        for s in reversed(body):
            self.statement(s)

    def statement(self, s: Statement) -> None:
        match s:
            case Compute():
                self._compute(s)
            case Scatter():
                self.read(s.base)
                self._loads(s, [])
            case Loop():
                self._loop(s)
            case Branch():
                self.read(s.predicate)
                for o in s.outs:
                    self.read(o.then, self.along(o.out))
                    self.read(o.otherwise, self.along(o.out))
                self.body(s.then)
                self.body(s.otherwise)

    def _compute(self, c: Compute) -> None:
        name = c.out.name
        live = [*self.terms.get(name, [])]
        if name not in self.whole and not c.out.dtype.is_int:
            self.mixed |= {
                (name, p)
                for p in range(len(c.axes))
                if len({r[p] for r in self.reads.get(name, [])}) > 1
            }
        if name not in self.indices:
            for axis, part in zip(c.axes, self.along(c.out), strict=True):
                if part is not None and self.seen(part.ends, name):
                    live.append(part.along(axis, c.axes))
        if live:
            self.live[name] = live
        for t in ends_of(c):
            self.read(t)
        self._loads(c, live)

    def _loads(self, s: Compute | Scatter, live: list[Live]) -> None:
        def part(at: int, index: Expr, read: Load) -> Part | None:
            own = next((x for x in live if x.axis == index), None)
            extent = read.tensor.shape[at]
            if own is None:
                match index:
                    case Binary("min", Axis() as axis, _) if axis.extent > extent:
                        return None  # the end is of the axis, not of the tensor
                    case _:
                        return held_before(index)
            if own.axis.extent > extent:  # and its end may exceed it too
                return tested(s.body, read, at) if isinstance(s, Compute) else None
            return own.part(read.index)

        for x in loads_of(s):
            self.indices.update(_indices(x))
            self._read(x.tensor, tuple(part(k, i, x) for k, i in enumerate(x.index)))

    def _loop(self, s: Loop) -> None:
        if s.count is not None:
            self.read(s.count)
        assumed = {c.param.name: self.along(c.out) for c in s.carried}
        before = (self.live, self.mixed, self.reads)
        while True:
            self.live, self.mixed = {**before[0]}, {*before[1]}
            self.reads = {n: [*found] for n, found in before[2].items()}
            for c in s.carried:
                self.read(c.result, None if c.result == s.predicate else assumed[c.param.name])
            for k in s.stacked:
                self.read(k.value, tuple(x and x.behind(-1) for x in self.along(k.out)[1:]))
            self.body(s.body)
            found = {
                c.param.name: tuple(
                    a if a == b else None
                    for a, b in zip(assumed[c.param.name], self.along(c.param), strict=True)
                )
                for c in s.carried
                if c.param.name in self.reads
            }
            found = assumed | found
            if found == assumed:
                break
            assumed = found
        for c in s.carried:
            self.read(c.init, assumed[c.param.name])


def _indices(x: Load) -> Iterator[str]:
    """The tensors that give the indices of `x`, except where any value would do."""
    for i, extent in zip(x.index, x.tensor.shape, strict=True):
        reach = interval(i) if (named := loads(i)) else None
        if reach is None or not reach.inside(0, extent - 1):
            yield from (y.tensor.name for y in named)
