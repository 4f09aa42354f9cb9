"""Joins several reduction axes of a product into one where its operands are contiguous along them: a window as large as its image.

    y[n] = sum over c, h < 7, w < 7 of x[c, h, w] * v[n, c, h, w]
         = sum over r of x[r // 49, r // 7 % 7, r % 7] * v[n, r // 49, r // 7 % 7, r % 7]

Lanes then load whole vectors along r, where w has too few points for one.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import msgspec

from monotile.analysis.affine import offset
from monotile.analysis.contraction import contraction
from monotile.ir.expr import (
    Axis,
    Load,
    axes_of,
    const,
    loads,
    map_loads,
    substitute,
)
from monotile.ir.program import Compute, Program, Statement
from monotile.transform.layout.parts import apart
from monotile.transform.rewrite import map_program
from monotile.transform.simplify.simplify import simplify_compute

VECTOR = 8  # elements of the widest vector: an axis of whole vectors is left unchanged


def join_reductions(program: Program) -> Program:
    """`program` with such products; the same object if there are none."""
    return map_program(program, _joined)


def _joined(s: Statement) -> Statement:
    if not isinstance(s, Compute) or len(s.reduce) < 2 or not s.reduce[-1].extent % VECTOR:
        return s
    found = contraction(s)
    if found is None or not (found.m or found.n):  # squares are no product of two operands
        return s
    elsewhere = axes_of(map_loads(s.body, lambda x: const(0, x.dtype)))
    if {*s.reduce} & {*elsewhere, *(x.axis for x in s.live)}:
        return s
    if not all(_in_a_row(x, s.reduce) for x in loads(s.body)):
        return s  # partly: a window, of whose channels others may be contiguous
    extents = [a.extent for a in s.reduce]
    r = Axis(s.reduce[0].name, prod(extents))
    at = {a.name: e for a, e in zip(s.reduce, apart(r, extents), strict=True)}
    return simplify_compute(msgspec.structs.replace(s, reduce=(r,), body=substitute(s.body, at)))


def _in_a_row(x: Load, along: Sequence[Axis]) -> bool:
    """Whether operands are contiguous along these axes, in their order, the last of them innermost."""
    e = offset(x)
    inside = {a for atom, _ in e.terms if not isinstance(atom, Axis) for a in axes_of(atom)}
    steps = pairwise(along)
    alike = all(e.coefficient(a) == b.extent * e.coefficient(b) for a, b in steps)
    return alike and not inside & {*along}
