"""Affine normal form of index expressions: a sum of coefficient times atom, plus a constant.

An atom is an Axis or an expression that cannot be split further (a Load, a quotient, a remainder). Quotients and
remainders of sums by a literal are split where ranges allow it:
    (c*y + z) // c = y,  (c*y + z) % c = z            if 0 <= z < c
    (g*y + z) // c = y // (c/g),  (g*y + z) % c = g * (y % (c/g)) + z     if g divides c and 0 <= z < g
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from monotile.ir.dtype import DType
from monotile.ir.expr import (  # fmt: skip
    COMPARE,
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    add,
    axes_of,
    idx,
    loads,
    mul,
    rebuild,
    substitute,
)


class Affine(msgspec.Struct, frozen=True, cache_hash=True):
    """The sum of terms (atom, coefficient) plus `constant`; atoms are unique, coefficients nonzero."""

    terms: tuple[tuple[Expr, int], ...]
    constant: int = 0

    def __add__(self, other: "Affine") -> "Affine":
        terms = dict(self.terms)
        for atom, coefficient in other.terms:
            terms[atom] = terms.get(atom, 0) + coefficient
        kept = tuple((a, c) for a, c in terms.items() if c)
        return Affine(kept, self.constant + other.constant)

    def scale(self, factor: int) -> "Affine":
        if factor == 0:
            return Affine(())
        return Affine(tuple((a, c * factor) for a, c in self.terms), self.constant * factor)

    def coefficient(self, atom: Expr) -> int:
        return dict(self.terms).get(atom, 0)

    def mentions(self, axis: Axis) -> bool:
        """Whether `axis` occurs anywhere, also inside an atom."""
        return any(axis in axes_of(a) for a, _ in self.terms)

    @property
    def expr(self) -> Expr:
        out: Expr = idx(self.constant)
        for atom, coefficient in self.terms:
            out = add(mul(atom, idx(coefficient)), out)
        return out


@functools.lru_cache(maxsize=65536)
def affine(e: Expr) -> Affine:
    """The normal form of an int64 expression."""
    match e:
        case Const(value):
            return Affine((), int(value))
        case Binary("add", a, b):
            return affine(a) + affine(b)
        case Binary("sub", a, b):
            return affine(a) + affine(b).scale(-1)
        case Binary("mul", a, Const(value)) | Binary("mul", Const(value), a):
            return affine(a).scale(int(value))
        case Binary("floordiv", a, Const(value)) if int(value) > 0:
            return _divide(affine(a), int(value))[0]
        case Binary("mod", a, Const(value)) if int(value) > 0:
            return _divide(affine(a), int(value))[1]
        case _:
            return Affine(((e, 1),))


@functools.lru_cache(maxsize=65536)
def normalised_indices(e: Expr) -> Expr:
    """`e` with its indices and their comparisons in normal form, so that equal ones are equal expressions."""
    match e:
        case Load(tensor, index):
            return Load(tensor, tuple(affine(normalised_indices(i)).expr for i in index))
        case Binary(op, a, b) if op in COMPARE and a.dtype is DType.I64:
            return Binary(
                op, affine(normalised_indices(a)).expr, affine(normalised_indices(b)).expr
            )
        case _:
            return rebuild(e, normalised_indices)


def bounds(e: Affine) -> tuple[int, int] | None:
    """Lower and upper bound; None if unknown."""
    low = high = e.constant
    for atom, coefficient in e.terms:
        known = _atom_bounds(atom)
        if known is None:
            return None
        ends = (known[0] * coefficient, known[1] * coefficient)
        low, high = low + min(ends), high + max(ends)
    return low, high


def within(index: Expr, extent: int) -> bool:
    """Whether `index` is within a dimension of that extent for all values of its axes and any data that it loads."""
    found = None if loads(index) else bounds(affine(index))
    return found is not None and found[0] >= 0 and found[1] < extent


@functools.lru_cache(maxsize=65536)
def offset(load: Load) -> Affine:
    """The element offset of `load` in its row-major tensor."""
    total = Affine(())
    for index, stride in zip(load.index, load.tensor.strides, strict=True):
        total = total + affine(index).scale(stride)
    return joined(total)


def joined(e: Affine) -> Affine:
    """`e` with every c * (x // c) + x % c rejoined to x (delinearised indices)."""
    terms = dict(e.terms)
    for atom, k in e.terms:
        match atom:
            case Binary("mod", x, Const(value)) if int(value) > 0:
                quotient = affine(Binary("floordiv", x, idx(int(value))))
                rest = {a: terms.get(a, 0) - q * k * int(value) for a, q in quotient.terms}
                if quotient.constant == 0 and quotient.terms and not any(rest.values()):
                    for a in rest:
                        del terms[a]
                    del terms[atom]
                    whole = Affine(tuple(terms.items()), e.constant) + affine(x).scale(k)
                    return joined(whole)
            case _:
                pass
    return e


@functools.lru_cache(maxsize=65536)
def contiguous_run(e: Affine, axis: Axis, limit: int) -> int:
    """The largest power of two v <= limit such that e has stride 1 over each aligned group of v values of `axis`.

    Groups start at multiples of v, v divides the extent, and the value at the start of a group is a multiple of v
    (given that every atom is): the condition for a vector access of v elements. 1 if there is no such run.
    """
    return _longest(axis, limit, lambda v: _runs(e, axis, v))


def _longest(axis: Axis, limit: int, holds: Callable[[int], bool]) -> int:
    """The largest power of two up to `limit` that divides the extent and for which, as for all smaller ones, `holds`; 1 if none."""
    v = 1
    while v * 2 <= limit and axis.extent % (v * 2) == 0 and holds(v * 2):
        v *= 2
    return v


def flattened(e: Affine, axes: Sequence[Axis]) -> tuple[Affine, Axis]:
    """`e` over one linearised axis instead of the last of `axes`, as many of them as have a common stride."""
    last = axes[-1]
    step, count, extent = e.coefficient(last), 1, last.extent
    while count < len(axes) and step and e.coefficient(axes[-1 - count]) == step * extent:
        extent *= axes[-1 - count].extent
        count += 1
    if count == 1:
        return e, last
    taken, flat = axes[len(axes) - count :], Axis("flattened", extent)
    rest = Affine(tuple((a, c) for a, c in e.terms if a not in taken), e.constant)
    if any(rest.mentions(a) for a in taken):
        return e, last
    return rest + Affine(((flat, step),)), flat


@functools.lru_cache(maxsize=65536)
def constant_run(e: Affine, axis: Axis, limit: int) -> int:
    """The largest power of two v <= limit that divides the extent such that e is constant over each aligned group of v values of `axis`."""

    def same(v: int) -> bool:
        split, lane = _split(e, axis, v)
        return not split.mentions(lane)

    return _longest(axis, limit, same)


class Window(NamedTuple):
    """An aligned piece of memory that contains the elements of all lanes of a vector. first: its beginning. at: a lane's position in it.
    width: elements."""

    first: Affine
    at: Affine
    width: int


def window(e: Affine, lane: Axis, most: int) -> Window | None:
    """The piece of `width` elements, a power of two up to `most`, that contains e for all lanes; None where there is none, or positions
    of lanes depend on other axes. It is aligned given that every atom is."""
    along = Affine(tuple(t for t in e.terms if lane in axes_of(t[0])), e.constant)
    if not along.terms or any(axes_of(atom) - {lane} for atom, _ in along.terms):
        return None
    places = [
        affine(substitute(along.expr, {lane.name: idx(k)})).constant for k in range(lane.extent)
    ]
    low, high, width = min(places), max(places), 2
    while width <= most and low // width != high // width:
        width *= 2
    start = low // width * width
    rest = e + along.scale(-1)
    if width > most or any(c % width for _, c in rest.terms):
        return None
    return Window(rest + Affine((), start), along + Affine((), -start), width)


@functools.lru_cache(maxsize=65536)
def window_run(e: Affine, axis: Axis, limit: int, most: int) -> int:
    """The largest power of two v <= limit that divides the extent such that each aligned group of v values of `axis` is within an
    aligned piece of at most so many elements."""

    def fits(v: int) -> bool:
        split, lane = _split(e, axis, v)
        return not split.mentions(lane) or window(split, lane, most) is not None

    return _longest(axis, limit, fits)


def _split(e: Affine, axis: Axis, v: int) -> tuple[Affine, Axis]:
    """`e` in groups of v values of `axis`, and the axis within them."""
    group, lane = Axis(f"{axis.name}'group", axis.extent // v), Axis(f"{axis.name}'lane", v)
    return affine(normalised_indices(_replace(e.expr, axis, add(mul(group, idx(v)), lane)))), lane


def _runs(e: Affine, axis: Axis, v: int) -> bool:
    split, lane = _split(e, axis, v)
    rest = Affine(tuple((a, c) for a, c in split.terms if a != lane), split.constant)
    if split.coefficient(lane) != 1 or rest.mentions(lane):
        return False
    return rest.constant % v == 0 and all(c % v == 0 for _, c in rest.terms)


def _replace(e: Expr, axis: Axis, by: Expr) -> Expr:
    match e:
        case Axis():
            return by if e == axis else e
        case Const():
            return e
        case Binary(op, a, b):
            return Binary(op, _replace(a, axis, by), _replace(b, axis, by))
        case Load(tensor, index):
            return Load(tensor, tuple(_replace(i, axis, by) for i in index))
        case Unary(op, x):
            return Unary(op, _replace(x, axis, by))
        case Cast(x, dtype):
            return Cast(_replace(x, axis, by), dtype)
        case Select(c, t, o):
            return Select(_replace(c, axis, by), _replace(t, axis, by), _replace(o, axis, by))


def _divide(x: Affine, c: int) -> tuple[Affine, Affine]:
    """Quotient and remainder of `x` by the positive literal `c`."""
    quotient = Affine(tuple((a, k // c) for a, k in x.terms if k % c == 0), x.constant // c)
    rest = Affine(tuple((a, k) for a, k in x.terms if k % c), x.constant % c)
    known = bounds(rest)
    if known and 0 <= known[0] and known[1] < c:
        return quotient, rest
    for g in sorted({math.gcd(c, k) for _, k in rest.terms} - {1, c}, reverse=True):
        large = Affine(tuple((a, k // g) for a, k in rest.terms if k % g == 0), rest.constant // g)
        small = Affine(tuple((a, k) for a, k in rest.terms if k % g), rest.constant % g)
        known = bounds(small)
        if known and 0 <= known[0] and known[1] < g:
            upper_q, upper_r = _divide(large, c // g)
            return quotient + upper_q, upper_r.scale(g) + small
    of = Affine(rest.terms[::-1], rest.constant).expr  # whose normal form is `rest`, term by term
    match rest:
        case Affine(((Binary("floordiv", y, Const(value)), 1),), k):
            # (y // b + k) // c = (y + k b) // (b c)
            b = int(value)
            q = affine(Binary("floordiv", add(y, idx(k * b)), idx(b * c)))
        case _:
            q = Affine(((Binary("floordiv", of, idx(c)), 1),))
    return quotient + q, Affine(((Binary("mod", of, idx(c)), 1),))


def _atom_bounds(e: Expr) -> tuple[int, int] | None:
    match e:
        case Axis(_, extent):
            return 0, max(extent - 1, 0)
        case Binary("mod", a, Const(value)) if int(value) > 0:
            known = bounds(affine(a))
            if known and 0 <= known[0] and known[1] < int(value):
                return known
            return 0, int(value) - 1
        case Binary("floordiv", a, Const(value)) if int(value) > 0:
            known = bounds(affine(a))
            return (known[0] // int(value), known[1] // int(value)) if known else None
        case _:
            return None
