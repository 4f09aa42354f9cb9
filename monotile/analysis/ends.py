"""Reductions in which conditions select a different range of terms for each element: their first and last terms."""

import functools
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import msgspec

from monotile.analysis.contraction import contraction
from monotile.analysis.dead import Side, clamped, side_of
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    axes_of,
    binary,
    children,
    conjuncts,
    const,
    idx,
    loads,
    rebuild,
)
from monotile.ir.intervals import Ranges
from monotile.ir.program import Compute
from monotile.ir.scalar import identity

PLAIN = frozenset({"sum", "prod", "max", "min", "any", "all"})  # argmax and argmin give positions
LEAST = 8  # terms from which on ends are worth it
TRUE = const(True, DType.BOOL)


class Limit(NamedTuple):
    """The condition `term` bounds the axis on one side, except where `unless` holds."""

    term: Expr
    side: Side
    unless: Expr | None


class SegmentEnds(msgspec.Struct, frozen=True):
    """The terms from `first` on and before `end` of an element, over the axes of its Compute. body: a term there."""

    first: Expr
    end: Expr
    body: Expr

    @property
    def axes(self) -> frozenset[Axis]:
        """The axes on which the ends depend."""
        return axes_of(self.first) | axes_of(self.end)


def neutral(combiner: str, dtype: DType) -> Const:
    """The neutral element of the reduction."""
    return const(identity(combiner, dtype).item(), dtype)


def limits(s: Compute, axis: Axis) -> Iterator[Limit]:
    """The conditions that bound the reduction axis `axis` by the axes of `s` and by loaded values."""
    assert s.combiner is not None
    for term in _needed(s.body, s.combiner):
        if not axes_of(term) <= {*s.axes, axis}:
            continue
        parts: list[tuple[Expr, Expr | None]] = [(term, None)]
        if isinstance(term, Binary) and term.op == "or":
            parts = [(term.a, term.b), (term.b, term.a)]
        for comparison, unless in parts:
            side = side_of(comparison, axis)
            if side is not None and (unless is None or axis not in axes_of(unless)):
                yield Limit(term, side, unless)


def _needed(e: Expr, combiner: str) -> Iterator[Expr]:
    """Conditions outside of which a term is neutral."""
    match e:
        case Cast(x) if combiner == "sum":  # of 0, in every type
            yield from _needed(x, combiner)
        case Select(cond, then, otherwise) if otherwise == neutral(combiner, e.dtype):
            yield from conjuncts(cond)
            yield from _needed(then, combiner)
        case _ if combiner == "sum" and e.dtype is DType.BOOL:
            yield from conjuncts(e)
        case _:
            pass


def gathers(e: Expr, axis: Axis) -> bool:
    """Whether `axis` indexes a gather, or is used in conditions only. Other walks, as over keys, are left to the families."""
    direct = [x for x in _values(e) if axis in axes_of(x)]
    return not direct or any(
        axis in axes_of(y) for x in direct if isinstance(x, Load) for i in x.index for y in loads(i)
    )


def _values(e: Expr) -> Iterator[Expr]:
    """The Loads and axes in `e` that are no part of a condition."""
    match e:
        case Load() | Axis():
            yield e
        case Select(_, then, otherwise):
            yield from _values(then)
            yield from _values(otherwise)
        case _ if e.dtype is DType.BOOL:
            pass
        case _:
            for x in children(e):
                yield from _values(x)


@functools.lru_cache(maxsize=4096)
def segment_ends(c: Compute) -> SegmentEnds | None:
    """The ends of each element of `c`, known during the call, if they can be read before its first term; None where it has none, or is
    not a sum over gathered terms."""
    if c.combiner not in PLAIN or len(c.reduce) != 1 or contraction(c) is not None:
        return None
    (axis,) = c.reduce
    if axis.extent < LEAST or c.live_along(axis) is not None or not gathers(c.body, axis):
        return None
    found = [x for x in limits(c, axis) if _readable(x)]
    first, end = (
        functools.reduce(
            functools.partial(binary, op),
            [_place(x, axis, none) for x in found if x.side.end is last] or [idx(none)],
        )
        for op, none, last in (("max", 0, False), ("min", axis.extent, True))
    )
    ends = SegmentEnds(first, end, _without(c.body, {x.term for x in found}))
    return ends if ends.axes and (loads(first) or loads(end)) else None


@functools.lru_cache(maxsize=4096)
def share_of_terms(c: Compute) -> float:
    """The fraction of its terms that each element has on average, where elements with different ends divide all terms among them."""
    found = segment_ends(c)
    if found is None or not axes_of(found.first) or not axes_of(found.end):
        return 1.0
    rows = max(1, prod(a.extent for a in found.axes))
    return max(1 / rows, 1 / c.reduce[0].extent)


def _readable(x: Limit) -> bool:
    """Whether the operands of the limit can be read for every element."""
    ranges = Ranges()
    within = ranges if x.unless is None else ranges.under(x.unless, value=False)
    found = [(y, within) for atom, _ in x.side.at.terms for y in loads(atom)]
    found += [] if x.unless is None else [(y, ranges) for y in loads(x.unless)]

    def inside(i: Expr, extent: int, known: Ranges) -> bool:
        span = known.of(i)
        return not loads(i) and span is not None and span.inside(0, extent - 1)

    return all(
        inside(i, n, known)
        for y, known in found
        for i, n in zip(y.index, y.tensor.shape, strict=True)
    )


def _place(x: Limit, axis: Axis, without: int) -> Expr:
    """The position of the limit. without: the position where there is none."""
    at = clamped(x.side, 0, axis.extent)
    return at if x.unless is None else Select(x.unless, idx(without), at)


def _without(e: Expr, true: set[Expr]) -> Expr:
    """`e` where the conditions `true` hold."""
    if e in true:
        return TRUE
    new = rebuild(e, lambda x: _without(x, true))
    match new:
        case Binary("and", a, b) if TRUE in (a, b):
            return b if a == TRUE else a
        case Select(cond, then, _) if cond == TRUE:
            return then
        case _:
            return new
