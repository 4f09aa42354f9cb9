"""Shortens reductions of which a condition selects few terms, a different range for each element: bags of an embedding.

    y[i] = sum over r < R of where(first(i) <= r < end(i), w[ids[r]], 0)
         = sum over j < W of where(first(i) + j < end(i), w[ids[first(i) + j]], 0)

W is the longest of all such ranges. Conditions are evaluated at each point, and those that always hold are dropped. Where a comparison
selects one term, possibly by data, the sum is that term (`single_terms.py`). Large windows are reduced by one dimension after the other
(`separate_windows.py`).
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import msgspec
import numpy as np

from monotile.analysis.contraction import contraction
from monotile.analysis.ends import PLAIN, Limit, gathers, limits, neutral
from monotile.analysis.unconditional import holding
from monotile.ir.body import Body, grid
from monotile.ir.expr import (
    Axis,
    Binary,
    Expr,
    Select,
    add,
    axes_of,
    binary,
    idx,
    loads,
    substitute,
)
from monotile.ir.program import Compute, Program, Statement
from monotile.ir.scalar import Array
from monotile.transform.rewrite import map_program
from monotile.transform.simplify.dce import eliminate_dead_code
from monotile.transform.simplify.separate_windows import separate_windows
from monotile.transform.simplify.simplify import simplify_compute, without_unit_axes
from monotile.transform.simplify.single_terms import Matrices, compared, single_term
from monotile.transform.simplify.unroll_products import unroll_products

POINTS = 1 << 20  # points at which ends and conditions are evaluated


class Range(NamedTuple):
    """`longest` points from `first` on contain all selected terms. axes: those that the ends depend on."""

    first: Expr
    longest: int
    axes: tuple[Axis, ...]


def shorten_reductions(program: Program) -> Program:
    """`program` with such reductions over the selected terms; the same object if there are none."""
    matrices = compared(program)
    found = map_program(program, lambda s: _shortened(s, matrices))
    found = program if found is program else eliminate_dead_code(found)
    return unroll_products(separate_windows(found))


def _shortened(s: Statement, matrices: Matrices) -> Statement:
    if not isinstance(s, Compute) or s.combiner not in PLAIN:
        return s
    s = single_term(s, matrices)
    if s.combiner is None or contraction(s) is not None:
        return s
    for axis in s.reduce:
        known = [x for x in limits(s, axis) if not loads(x.term)]
        found = _range(s, axis, known) if known and gathers(s.body, axis) else None
        if found is not None and (found.longest == 1 or 2 * found.longest <= axis.extent):
            short = without_unit_axes(simplify_compute(_over(s, axis, known, found)))
            return _shortened(simplify_compute(short), matrices)
    return s


def _range(s: Compute, axis: Axis, known: Sequence[Limit]) -> Range | None:
    """The range of `axis` that the limits `known` allow; None where that would take too long to find."""
    named = frozenset[Axis]().union(*(axes_of(x.term) for x in known))
    axes = tuple(a for a in s.axes if a in named)
    if prod(a.extent for a in axes) > POINTS:
        return None
    first: Expr = idx(0)
    end: Expr = idx(axis.extent)
    for x in known:
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


def _over(s: Compute, axis: Axis, known: Sequence[Limit], found: Range) -> Compute:
    """`s` over the points of `axis` in that range, with the conditions that do not hold at all of them."""
    assert s.combiner is not None
    short = Axis(axis.name, found.longest)
    at = add(found.first, short)
    inside: Expr = Binary("lt", at, idx(axis.extent))
    axes = (*found.axes, short)
    true: set[Expr] = set()
    if prod(a.extent for a in axes) <= POINTS:
        here = _at_all(inside, axes)
        moved = (substitute(x.term, {axis.name: at}) for x in known)
        true = {e for e in moved if (_at_all(e, axes) | ~here).all()}
        true |= {inside} if here.all() else set()
    body = substitute(s.body, {axis.name: at})
    body = holding(Select(inside, body, neutral(s.combiner, body.dtype)), true)
    reduce = tuple(short if a == axis else a for a in s.reduce)
    return msgspec.structs.replace(s, reduce=reduce, body=body)
