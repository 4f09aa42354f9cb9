"""Sums products over one axis instead of two where all that they read lies one behind the other along both: a window as large as its image.

    y[n] = sum over c, h < 7, w < 7 of x[c, h, w] * v[n, c, h, w]
         = sum over r of x[r // 49, r // 7 % 7, r % 7] * v[n, r // 49, r // 7 % 7, r % 7]

Lanes then take whole vectors along r, where w has too few points for one.
"""

from itertools import pairwise

import msgspec

from monotile.analysis.affine import offset
from monotile.analysis.contraction import contraction
from monotile.ir.expr import (
    Axis,
    Expr,
    Load,
    axes_of,
    binary,
    const,
    idx,
    loads,
    map_loads,
    substitute,
)
from monotile.ir.program import Compute, Program, Statement
from monotile.transform.rewrite import map_program
from monotile.transform.simplify.simplify import simplify_compute

VECTOR = 8  # elements of the widest: an axis of whole ones is left as it is


def join_reductions(program: Program) -> Program:
    """`program` with such products; the same object if there are none."""
    return map_program(program, _joined)


def _joined(s: Statement) -> Statement:
    if not isinstance(s, Compute) or len(s.reduce) < 2:
        return s
    found = contraction(s)
    if found is None or not (found.m or found.n):  # squares are no product of two operands
        return s
    elsewhere = axes_of(map_loads(s.body, lambda x: const(0, x.dtype)))
    for outer, inner in pairwise(s.reduce):
        apart = {outer, inner} & elsewhere or any(x.axis in (outer, inner) for x in s.live)
        if apart or not inner.extent % VECTOR:
            continue
        if all(_in_a_row(x, outer, inner) for x in loads(s.body)):
            return _joined(_along_one(s, outer, inner))
    return s


def _in_a_row(x: Load, outer: Axis, inner: Axis) -> bool:
    """Whether elements for neighbours along `outer` are as far apart as all along `inner` are long."""
    e = offset(x)
    inside = {a for atom, _ in e.terms if not isinstance(atom, Axis) for a in axes_of(atom)}
    apart = e.coefficient(outer) != inner.extent * e.coefficient(inner)
    return not apart and not inside & {outer, inner}


def _along_one(s: Compute, outer: Axis, inner: Axis) -> Compute:
    r = Axis(outer.name, outer.extent * inner.extent)
    at: dict[str, Expr] = {
        outer.name: binary("floordiv", r, idx(inner.extent)),
        inner.name: binary("mod", r, idx(inner.extent)),
    }
    reduce = tuple(r if a == outer else a for a in s.reduce if a != inner)
    return simplify_compute(msgspec.structs.replace(s, reduce=reduce, body=substitute(s.body, at)))
