"""Writes a product of a few planes as a sum: heads, streams or colours that a small matrix mixes.

    y[h, i] = sum over g < 6 of a[h, g] * x[g, i]        for 6 h, and many i
            = a[h, 0] * x[0, i] + a[h, 1] * x[1, i] + ...

A tile of a tensor core is mostly empty then, and a stage of products lies between what makes `x` and what reads `y`. The sum is
element-wise: it takes vectors along i, and joins what is before and behind it.
"""

import functools
import itertools
import math

import msgspec

from monotile.analysis.contraction import factors
from monotile.ir.expr import Axis, Binary, Load, add, axes_of, idx, substitute
from monotile.ir.program import Compute, Program, Statement
from monotile.transform.rewrite import map_program

FEW = 8  # terms, and results of each
LONG = 64  # of a plane's rows
MANY = 1 << 16  # results


def unroll_products(program: Program) -> Program:
    """`program` with such products of few planes."""
    return map_program(program, _unrolled)


def _unrolled(s: Statement) -> Statement:
    if not isinstance(s, Compute) or not _mixes(s):
        return s
    points = itertools.product(*(range(a.extent) for a in s.reduce))
    names = [a.name for a in s.reduce]
    terms = [substitute(s.body, {n: idx(i) for n, i in zip(names, p, strict=True)}) for p in points]
    return msgspec.structs.replace(s, body=functools.reduce(add, terms), reduce=(), combiner=None)


def _mixes(c: Compute) -> bool:
    """Whether `c` multiplies a few planes by a small matrix."""
    if c.combiner != "sum" or c.live or c.out.size < MANY:
        return False
    if not isinstance(c.body, Binary) or c.body.op != "mul":
        return False
    if not 1 < math.prod(a.extent for a in c.reduce) <= FEW:
        return False
    for x, other in itertools.permutations(factors(c)):
        if not isinstance(x, Load) or not isinstance(other, Load):
            return False
        along = x.index[-1] if x.index else None
        results = math.prod(a.extent for a in c.axes if a in axes_of(other) - axes_of(x))
        walks = isinstance(along, Axis) and along in c.axes and along.extent >= LONG
        if walks and along not in axes_of(other) and {*c.reduce} <= axes_of(x) & axes_of(other) and 1 < results <= FEW:  # fmt: skip
            return True
    return False
