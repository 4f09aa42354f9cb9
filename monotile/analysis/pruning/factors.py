"""Splits dimensions into products of factors, and finds factors of different dimensions that correspond.

A model reads 3 * 12 * 64 features as three times twelve heads of 64. That dimension has the factors (3, 12, 64); an index h * 64 + d +
768 has the digits 1, h and d. Axes are split in the same way, so that r // 64 is a digit of r. A factor whose digit is always a digit of
an axis, and that axis's factor, have the same coordinates: they shrink together or not at all. A factor that is read in any other way is
pinned.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from monotile.analysis.affine import Affine, affine
from monotile.ir.expr import (
    NEGATED,
    Axis,
    Binary,
    Const,
    Expr,
    Load,
    Select,
    axes_of,
    children,
    substitute,
)
from monotile.ir.program import Compute, Program, statements

Dimension = tuple[
    str, int
]  # of a tensor, by name; after its dimensions come the reduce axes of the Compute that defines it
Factor = tuple[str, int, int]  # of a dimension: its number, the outermost is 0
Range = tuple[int, int]  # least and most
Digits = tuple[Affine, ...]
MARK = "~"  # in the names of digits


class Place(msgspec.Struct, frozen=True):
    """A Load, and the conditions on axes around it, by name."""

    load: Load
    ranges: tuple[tuple[str, Range], ...] = ()


def places(e: Expr, ranges: Mapping[str, Range] | None = None) -> Iterator[Place]:
    """Every Load of `e`, also those in indices."""
    known = ranges or {}
    match e:
        case Load():
            yield Place(e, tuple(sorted(known.items())))
            for i in e.index:
                yield from places(i, known)
        case Select(cond, then, otherwise):
            yield from places(cond, known)
            yield from places(then, under(cond, known, holds=True))
            yield from places(otherwise, under(cond, known, holds=False))
        case _:
            for x in children(e):
                yield from places(x, known)


def under(cond: Expr, known: Mapping[str, Range], *, holds: bool) -> Mapping[str, Range]:
    """The ranges of axes where `cond` holds, or does not."""
    match cond:
        case Binary("and" | "or" as op, a, b) if (op == "and") == holds:
            return under(b, under(a, known, holds=holds), holds=holds)
        case Binary("lt" | "le" | "gt" | "ge" as op, Axis(name, extent), Const(int(value))):
            low, high = known.get(name, (0, extent - 1))
            match op if holds else NEGATED[op]:
                case "lt":
                    high = min(high, value - 1)
                case "le":
                    high = min(high, value)
                case "gt":
                    low = max(low, value + 1)
                case _:
                    low = max(low, value)
            return {**known, name: (low, high)}
        case _:
            return known


def own_axes(e: Expr) -> frozenset[Axis]:
    """The axes that `e` depends on other than by the indices of its Loads."""
    match e:
        case Load():
            return frozenset()
        case Axis():
            return frozenset((e,))
        case _:
            return frozenset[Axis]().union(*(own_axes(x) for x in children(e)))


def axes_by_name(s: Compute) -> dict[str, tuple[Axis, Dimension]]:
    """The axes and reduce axes of `s`, and their dimensions."""
    own = (*s.axes, *s.reduce)
    return {a.name: (a, (s.out.name, k)) for k, a in enumerate(own)}


class Factors:
    """The factors of all dimensions and reduce axes of a Program, found by the indices that read them."""

    def __init__(self, program: Program) -> None:
        self.computes = [s for s in statements(program.body) if isinstance(s, Compute)]
        self._places = {s.out.name: tuple(dict.fromkeys(places(s.body))) for s in self.computes}
        self.extents: dict[Dimension, int] = {}
        for t in (*program.inputs, *(w.tensor for w in program.weights)):
            self.extents |= {(t.name, d): n for d, n in enumerate(t.shape)}
        for s in self.computes:
            for x in self._places[s.out.name]:
                t = x.load.tensor
                self.extents |= {(t.name, d): n for d, n in enumerate(t.shape)}
            self.extents |= {d: a.extent for a, d in axes_by_name(s).values()}
        self._breaks: dict[Dimension, tuple[int, ...]] = {}
        self.broken: set[Dimension] = set()
        self._refine()

    def places(self, s: Compute) -> tuple[Place, ...]:
        """Every Load of `s`."""
        return self._places[s.out.name]

    def breaks(self, d: Dimension) -> tuple[int, ...]:
        """The strides of its factors, ascending, and its extent."""
        n = self.extents[d]
        return self._breaks.get(d) or ((1, n) if n > 1 else (1,))

    def of(self, d: Dimension) -> tuple[int, ...]:
        """The extents of its factors, the outermost first."""
        at = self.breaks(d)
        return tuple(b // a for a, b in itertools.pairwise(at))[::-1]

    def split(self, s: Compute) -> dict[str, Expr]:
        """Each axis of `s` as a sum of its digits."""
        out: dict[str, Expr] = {}
        for name, (_, d) in axes_by_name(s).items():
            total = Affine(())
            for k, (n, stride) in enumerate(zip(self.of(d), self.breaks(d)[-2::-1], strict=True)):
                total = total + Affine(((digit_of(name, k, n), stride),))
            out[name] = total.expr
        return out

    def digits(self, s: Compute, x: Place, split: dict[str, Expr]) -> tuple[Digits | None, ...]:
        """The index of `x` along each dimension in digits of its factors; None where it has none."""
        known: dict[str, Range] = {}
        for name, span in x.ranges:
            if name in split:
                known |= self._digit_ranges(name, axes_by_name(s)[name][1], span)
        return tuple(
            _in_digits(affine(substitute(i, split)), self.of((x.load.tensor.name, d)), known)
            for d, i in enumerate(x.load.index)
        )

    def _digit_ranges(self, name: str, d: Dimension, span: Range) -> dict[str, Range]:
        """The ranges of an axis's digits that follow from a range of the axis, the outermost first; none after the first digit that is
        not fixed."""
        found: dict[str, Range] = {}
        low, high = span
        for k, (n, stride) in enumerate(zip(self.of(d), self.breaks(d)[-2::-1], strict=True)):
            found[digit_of(name, k, n).name] = low // stride, high // stride
            if low // stride != high // stride:
                break
            low, high = low % stride, high % stride
        return found

    def _refine(self) -> None:
        """Adds strides until every index that can be split is split."""
        readers: dict[str, set[int]] = {}
        for k, s in enumerate(self.computes):
            for name in (s.out.name, *(x.load.tensor.name for x in self.places(s))):
                readers.setdefault(name, set()).add(k)
        todo = set(range(len(self.computes)))
        while todo:
            k = min(todo)
            todo.discard(k)
            for d in self._refined(self.computes[k]):
                todo |= readers[d[0]]

    def _refined(self, s: Compute) -> list[Dimension]:
        """Refines the operands of `s`, and its axes; gives the dimensions that changed."""
        split = self.split(s)
        axes = axes_by_name(s)
        found: list[tuple[Dimension, int]] = []  # before one is added, as digits are numbered then
        for x in self.places(s):
            for d, i in enumerate(x.load.index):
                if axes_of(i):
                    e = affine(substitute(i, split))
                    dim = x.load.tensor.name, d
                    found += (*self._of_dimension(dim, e), *self._of_axes(dim, e, axes))
        return [d for d, stride in found if self._add(d, stride)]

    def _of_dimension(self, dim: Dimension, e: Affine) -> Iterator[tuple[Dimension, int]]:
        for atom, c in e.terms:
            if isinstance(atom, Axis) and c > 0:
                yield dim, c
                yield dim, c * atom.extent

    def _of_axes(
        self, dim: Dimension, e: Affine, axes: Mapping[str, tuple[Axis, Dimension]]
    ) -> Iterator[tuple[Dimension, int]]:
        for atom, c in e.terms:
            match atom:
                case Axis() if c > 0 and dim not in self.broken:
                    yield from self._of_digit(atom, c, self.breaks(dim), axes)
                case Binary("floordiv" | "mod", inner, Const(int(by))):
                    for digit, k in affine(inner).terms:
                        if isinstance(digit, Axis) and k > 0:
                            yield from self._of_digit(digit, k, (by,), axes)
                case _:
                    pass

    def _of_digit(
        self, digit: Axis, c: int, at: Iterable[int], axes: Mapping[str, tuple[Axis, Dimension]]
    ) -> Iterator[tuple[Dimension, int]]:
        """Strides of an axis, from those of the dimension that its digit, times c, indexes."""
        name, _, k = digit.name.rpartition(MARK)
        if name not in axes:
            return
        dim = axes[name][1]
        stride = self.breaks(dim)[-2 - int(k)]
        for b in at:
            if c < b < c * digit.extent and b % c == 0:
                yield dim, b // c * stride

    def _add(self, d: Dimension, stride: int) -> bool:
        """Adds a stride to a dimension, or marks it as having no factors; gives whether it changed."""
        at, n = self.breaks(d), self.extents[d]
        if d in self.broken or stride in at or not 1 < stride < n:
            return False
        new = tuple(sorted((*at, stride)))
        if any(b % a for a, b in itertools.pairwise(new)):
            self.broken.add(d)
            self._breaks.pop(d, None)
        else:
            self._breaks[d] = new
        return True


def digit_of(name: str, k: int, extent: int) -> Axis:
    """Digit k of an axis, the outermost is 0."""
    return Axis(f"{name}{MARK}{k}", extent)


def axis_of(digit: Axis) -> tuple[str, int]:
    """The name of the axis of which it is a digit, and the digit's number."""
    name, _, k = digit.name.rpartition(MARK)
    return name, int(k)


def _in_digits(e: Affine, factors: Sequence[int], known: Mapping[str, Range]) -> Digits | None:
    """`e` in digits, the outermost first; None where that takes more than sorting its terms, or terms are not digits of axes."""
    if any(not isinstance(a, Axis) or MARK not in a.name for a, _ in e.terms):
        return None
    found: list[Affine] = []
    for n in reversed(factors[1:]):
        rest = Affine(tuple((a, c) for a, c in e.terms if c % n), e.constant)
        low, high = _bounds(rest, known)
        if low // n != high // n:
            return None
        found.append(rest + Affine((), -(low // n) * n))
        e = Affine(tuple((a, c // n) for a, c in e.terms if c % n == 0), low // n)
    low, high = _bounds(e, known)
    if factors and not 0 <= low <= high < factors[0]:
        return None
    return (*((e,) if factors else ()), *reversed(found))


def _bounds(e: Affine, known: Mapping[str, Range]) -> Range:
    low = high = e.constant
    for a, c in e.terms:
        assert isinstance(a, Axis)
        ends = [x * c for x in known.get(a.name, (0, a.extent - 1))]
        low, high = low + min(ends), high + max(ends)
    return low, high
