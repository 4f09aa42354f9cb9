"""Removes channels, heads and features that zero parameters make useless (SparTA, OSDI'22).

`analysis/pruning` finds them. Here all statements, tensors and weights that have them become smaller. The results stay the same up to
the order of summation. The runtime gathers the remaining parts of the weights.
"""

from collections.abc import Iterator, Mapping
from math import prod

import msgspec

from monotile.analysis.affine import Affine
from monotile.analysis.pruning.factors import (
    Dimension,
    Place,
    Range,
    axes_by_name,
    axis_of,
    own_axes,
    under,
)
from monotile.analysis.pruning.facts import Facts, Zeros
from monotile.analysis.pruning.removal import Removal, removal
from monotile.analysis.pruning.specialised import Gathered, Removed, Specialised
from monotile.analysis.work import work
from monotile.errors import InternalError
from monotile.ir.expr import (
    Axis,
    Binary,
    Expr,
    Load,
    Select,
    Tensor,
    add,
    idx,
    mul,
    rebuild,
)
from monotile.ir.program import Compute, Program, Statement
from monotile.transform.rewrite import map_program

NOTHING_REMOVED = Specialised()


def specialise(program: Program, facts: Facts) -> tuple[Program, Specialised]:
    """`program` without the parts that `facts` prove useless; `program` itself where there are none.

    facts: of weights with one part, in the order of their dimensions here. Unknown values are taken to be finite.
    """
    found = removal(program, facts)
    if not found.kept:
        return program, NOTHING_REMOVED
    shrunk = _Shrinking(found)
    smaller = map_program(program, shrunk.statement)
    weights = tuple(
        msgspec.structs.replace(w, tensor=shrunk.tensor(w.tensor)) for w in program.weights
    )
    smaller = msgspec.structs.replace(smaller, weights=weights)
    report = Specialised(
        tuple(_rows(program, found)),
        dict(_gathered(program, found)),
        _relied(program, facts, found),
        work(program),
        work(smaller),
    )
    return smaller, report


def _rows(program: Program, found: Removal) -> Iterator[Removed]:
    parts = {w.tensor.name: w.parts[0] for w in program.weights}
    for members in found.classes:
        names = tuple(dict.fromkeys((parts[n], d) for n, d, _ in members if n in parts))
        kept = found.kept[members[0]]
        yield Removed(names, len(kept), found.factors.of(members[0][:2])[members[0][2]])


def _gathered(program: Program, found: Removal) -> Iterator[tuple[str, Gathered]]:
    smaller = found.dimensions
    for w in program.weights:
        dims = [d for d in range(len(w.tensor.shape)) if (w.tensor.name, d) in smaller]
        if dims:
            kept = {d: found.coordinates((w.tensor.name, d)) for d in dims}
            shape = (len(kept[d]) if d in kept else n for d, n in enumerate(w.tensor.shape))
            size = prod(shape) * w.tensor.dtype.itemsize
            yield w.parts[0], Gathered(tuple((d, tuple(c.tolist())) for d, c in kept.items()), size)


def _relied(program: Program, facts: Facts, found: Removal) -> dict[str, Zeros]:
    """The fewest of `facts` that suffice: zeros in removed parts, then zeros and other values of vectors there, then all."""
    smaller = found.dimensions
    kept = {
        w.parts[0]: {
            d: found.coordinates((w.tensor.name, d))
            for d in range(len(w.tensor.shape))
            if (w.tensor.name, d) in smaller
        }
        for w in program.weights
    }
    for vectors in ("none", "zero", "all"):
        few = {n: z.within(kept.get(n, {}), vectors=vectors) for n, z in facts.items()}
        few = {n: z for n, z in few.items() if not z.nothing}
        if removal(program, few, found.factors).same(found):
            return few
    return {n: z for n, z in facts.items() if n in kept}


class _Shrinking:
    """Statements and tensors with smaller dimensions."""

    def __init__(self, found: Removal) -> None:
        self._factors = found.factors
        self._smaller = found.dimensions

    def tensor(self, t: Tensor) -> Tensor:
        shape = tuple(self._extent((t.name, d), n) for d, n in enumerate(t.shape))
        return t if shape == t.shape else Tensor(t.name, shape, t.dtype)

    def statement(self, s: Statement) -> Statement:
        if not isinstance(s, Compute):
            return s
        mine = [d for _, d in axes_by_name(s).values()]
        read = [
            (x.load.tensor.name, d)
            for x in self._factors.places(s)
            for d in range(len(x.load.index))
        ]
        if not any(d in self._smaller for d in (*mine, *read)):
            return s
        body = _Body(s, self).of(s.body, {})
        axes = tuple(self._axis(s, a) for a in s.axes)
        reduce = tuple(self._axis(s, a) for a in s.reduce)
        return Compute(self.tensor(s.out), axes, reduce, s.combiner, body, s.origin, s.live)

    def factors(self, d: Dimension) -> tuple[int, ...]:
        """The new ones."""
        return self._smaller.get(d) or self._factors.of(d)

    def index(self, s: Compute, x: Place) -> tuple[Expr | None, ...]:
        """New indices; None for one that has no digits, which stays."""
        split, axes = self._factors.split(s), axes_by_name(s)
        out: list[Expr | None] = []
        for d, digits in enumerate(self._factors.digits(s, x, split)):
            dim = x.load.tensor.name, d
            touched = dim in self._smaller or any(
                axes[a.name][1] in self._smaller
                for a in own_axes(x.load.index[d])
                if a.name in axes
            )
            if digits is None and touched:
                raise InternalError(f"a dimension of {s.out.name} shrinks and has no digits")
            if digits is None or not touched:
                out.append(None)
                continue
            total = Affine(())
            for digit, stride in zip(digits, _strides(self.factors(dim)), strict=True):
                total = total + digit.scale(stride)
            out.append(self._expression(s, total))
        return tuple(out)

    def _expression(self, s: Compute, e: Affine) -> Expr:
        """A sum of digits as an expression of the new axes."""
        terms: dict[str, dict[int, int]] = {}
        for digit, c in e.terms:
            assert isinstance(digit, Axis)
            name, k = axis_of(digit)
            terms.setdefault(name, {})[k] = c
        out: Expr = idx(e.constant)
        for name, (old, d) in axes_by_name(s).items():
            if name in terms:
                axis = self._axis(s, old)
                for c, part in _runs(axis, self.factors(d), terms[name]):
                    out = add(mul(part, idx(c)), out)
        return out

    def _axis(self, s: Compute, a: Axis) -> Axis:
        return Axis(a.name, self._extent(axes_by_name(s)[a.name][1], a.extent))

    def _extent(self, d: Dimension, n: int) -> int:
        return prod(self._smaller[d]) if d in self._smaller else n


class _Body:
    """The expression of a Compute."""

    def __init__(self, s: Compute, shrinking: _Shrinking) -> None:
        self._s, self._shrinking = s, shrinking

    def of(self, e: Expr, known: Mapping[str, Range]) -> Expr:
        match e:
            case Load(tensor, index):
                new = self._shrinking.index(self._s, Place(e, tuple(sorted(known.items()))))
                index = tuple(
                    self.of(i, known) if n is None else n for i, n in zip(index, new, strict=True)
                )
                return Load(self._shrinking.tensor(tensor), index)
            case Select(cond, then, otherwise):
                return Select(
                    self.of(cond, known),
                    self.of(then, under(cond, known, holds=True)),
                    self.of(otherwise, under(cond, known, holds=False)),
                )
            case _:
                return rebuild(e, lambda x: self.of(x, known))


def _strides(factors: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(factors[k + 1 :]) for k in range(len(factors)))


def _runs(
    axis: Axis, factors: tuple[int, ...], terms: Mapping[int, int]
) -> Iterator[tuple[int, Expr]]:
    """The sum over digits k of an axis, terms[k] times each, as quotients and remainders of it and what they are multiplied by."""
    strides = _strides(factors)
    k = len(factors) - 1
    while k >= 0:
        if k not in terms:
            k -= 1
            continue
        inner, c, extent = k, terms[k], factors[k]
        while k > 0 and terms.get(k - 1) == c * extent:
            k -= 1
            extent *= factors[k]
        part: Expr = axis
        if strides[inner] > 1:
            part = Binary("floordiv", part, idx(strides[inner]))
        if k > 0:
            part = Binary("mod", part, idx(extent))
        yield c, part
        k -= 1
