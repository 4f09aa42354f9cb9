"""Shortens reductions of which a condition leaves few terms, other ones for each element: bags of an embedding.

    y[i] = sum over r < R of where(first(i) <= r < end(i), w[ids[r]], 0)
         = sum over j < W of where(first(i) + j < end(i), w[ids[first(i) + j]], 0)

W is the longest of all such ranges. What conditions hold at each point is then found by evaluating them, and left out.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import msgspec
import numpy as np

from monotile.analysis.contraction import contraction
from monotile.analysis.dead import Side, side_of
from monotile.analysis.index_ranges import conjuncts
from monotile.ir.body import Body, grid
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Cast,
    Expr,
    Load,
    Select,
    add,
    axes_of,
    binary,
    children,
    const,
    idx,
    loads,
    rebuild,
    substitute,
)
from monotile.ir.program import Compute, Program, Statement
from monotile.ir.scalar import Array
from monotile.transform.rewrite import map_program
from monotile.transform.simplify.narrow import PLAIN, neutral
from monotile.transform.simplify.simplify import simplify_compute, without_unit_axes

POINTS = 1 << 20  # points at which ends and conditions are evaluated


class Limit(NamedTuple):
    """The condition `term` leaves only what is on one side, except where `unless` holds."""

    term: Expr
    side: Side
    unless: Expr | None


class Range(NamedTuple):
    """`longest` points from `first` on hold all that is left. axes: what ends depend on."""

    first: Expr
    longest: int
    axes: tuple[Axis, ...]


def shorten_reductions(program: Program) -> Program:
    """`program` with such reductions over the terms that are left; the same object if there are none."""
    return map_program(program, _shortened)


def _shortened(s: Statement) -> Statement:
    if not isinstance(s, Compute) or s.combiner not in PLAIN or contraction(s) is not None:
        return s
    for axis in s.reduce:
        limits = list(_limits(s, axis))
        found = _range(s, axis, limits) if limits and _gathers(s.body, axis) else None
        if found is not None and (found.longest == 1 or 2 * found.longest <= axis.extent):
            short = without_unit_axes(simplify_compute(_over(s, axis, limits, found)))
            return _shortened(simplify_compute(short))
    return s


def _needed(e: Expr, combiner: str) -> Iterator[Expr]:
    """Conditions without which a term changes nothing."""
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


def _limits(s: Compute, axis: Axis) -> Iterator[Limit]:
    """The conditions that bound `axis` by the axes of `s` alone."""
    assert s.combiner is not None
    for term in _needed(s.body, s.combiner):
        if loads(term) or not axes_of(term) <= {*s.axes, axis}:
            continue
        parts: list[tuple[Expr, Expr | None]] = [(term, None)]
        if isinstance(term, Binary) and term.op == "or":
            parts = [(term.a, term.b), (term.b, term.a)]
        for comparison, unless in parts:
            side = side_of(comparison, axis)
            if side is not None and (unless is None or axis not in axes_of(unless)):
                yield Limit(term, side, unless)


def _gathers(e: Expr, axis: Axis) -> bool:
    """Whether `axis` says what is looked up, or nothing but conditions depends on it. Other walks, as over keys, are left to the families."""
    direct = [x for x in _values(e) if axis in axes_of(x)]
    return not direct or any(
        axis in axes_of(y) for x in direct for i in getattr(x, "index", ()) for y in loads(i)
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


def _range(s: Compute, axis: Axis, limits: Sequence[Limit]) -> Range | None:
    """What `limits` leave of `axis`; None where that would take too long to find."""
    named = frozenset[Axis]().union(*(axes_of(x.term) for x in limits))
    axes = tuple(a for a in s.axes if a in named)
    if prod(a.extent for a in axes) > POINTS:
        return None
    first: Expr = idx(0)
    end: Expr = idx(axis.extent)
    for x in limits:
        at = binary("floordiv", x.side.at.expr, idx(x.side.by))
        if x.unless is not None:
            at = Select(x.unless, idx(axis.extent if x.side.end else 0), at)
        if x.side.end:
            end = binary("min", end, at)
        else:
            first = at if first == idx(0) else binary("max", first, at)
    starts = _at_all(first, axes)
    if (starts < 0).any():
        first, starts = binary("max", first, idx(0)), np.maximum(starts, 0)
    longest = (_at_all(end, axes) - starts).max(initial=1)
    return Range(first, int(longest), axes)


def _at_all(e: Expr, axes: Sequence[Axis]) -> Array:
    """The values of `e` over `axes`."""
    points = grid(axes, [slice(0, a.extent) for a in axes], {})
    return Body({}, points, "").value(e, None)


def _over(s: Compute, axis: Axis, limits: Sequence[Limit], found: Range) -> Compute:
    """`s` over the points of `axis` in that range, with the conditions that do not hold at all of them."""
    assert s.combiner is not None
    short = Axis(axis.name, found.longest)
    at = add(found.first, short)
    inside: Expr = Binary("lt", at, idx(axis.extent))
    axes = (*found.axes, short)
    true: set[Expr] = set()
    if prod(a.extent for a in axes) <= POINTS:
        here = _at_all(inside, axes)
        moved = (substitute(x.term, {axis.name: at}) for x in limits)
        true = {e for e in moved if (_at_all(e, axes) | ~here).all()}
        true |= {inside} if here.all() else set()

    def known(e: Expr) -> Expr:
        return const(True, DType.BOOL) if e in true else rebuild(e, known)

    body = substitute(s.body, {axis.name: at})
    body = known(Select(inside, body, neutral(s.combiner, body.dtype)))
    reduce = tuple(short if a == axis else a for a in s.reduce)
    return msgspec.structs.replace(s, reduce=reduce, body=body)
