"""Loop splitting: conditions that hold on one interval of a loop's variable, so that the loop can be cut where they change.

A guarded load (padding, a mask, a concatenation) inside a vectorised loop becomes a masked one at best. Cut at the two ends of the
interval, each part of the loop has no condition left.
"""

import functools
from collections.abc import Sequence

import msgspec

from monotile.analysis.affine import Affine, affine
from monotile.analysis.index_ranges import negative_where
from monotile.analysis.unconditional import both
from monotile.codegen.expression import is_index
from monotile.ir.expr import Axis, Binary, Expr, Select, add, axes_of, conjuncts, idx, loads, walk
from monotile.ir.intervals import Facts, truth


class Guard(msgspec.Struct, frozen=True):
    """`cond` is false for the variable below any of `lower` and from any of `upper` on; between them all its
    `terms` are true."""

    cond: Expr
    terms: tuple[Expr, ...]
    lower: tuple[Expr, ...]
    upper: tuple[Expr, ...]


def guard_of(bodies: Sequence[Expr], x: Axis, facts: Facts) -> Guard | None:
    """The first condition of a Select in `bodies` that changes with `x` and is not decided by `facts`."""
    for e in bodies:
        for node in walk(e):
            if isinstance(node, Select) and truth(node.cond, facts) is None:
                found = _guard(node.cond, x, facts)
                if found is not None:
                    return found
    return None


def stretch_of(cond: Expr, x: Axis, facts: Facts) -> tuple[Guard, tuple[Expr, ...]] | None:
    """The interval of `x` where `cond` holds, and its terms that do not depend on `x`, if it is one interval; no bounds if it does not
    depend on `x`."""
    found = _guard(cond, x, facts) or Guard(cond, (), (), ())
    rest = [t for t in conjuncts(cond) if t not in found.terms and truth(t, facts) is not True]
    if any(x in axes_of(t) or loads(t) for t in rest):
        return None
    return found, tuple(rest)


def steady_of(bodies: Sequence[Expr], x: Axis, facts: Facts) -> Expr | None:
    """The part of the first condition of a Select with loads in `bodies` that `facts` do not decide, if it is about indices and does not
    depend on `x`."""
    for e in bodies:
        for node in walk(e):
            if not isinstance(node, Select) or truth(node.cond, facts) is not None:
                continue
            if not loads(node) or loads(node.cond):
                continue
            open_ = [t for t in conjuncts(node.cond) if truth(t, facts) is None]
            if open_ and not any(x in axes_of(t) for t in open_):
                return functools.reduce(both, open_)
    return None


def _guard(cond: Expr, x: Axis, facts: Facts) -> Guard | None:
    terms: list[Expr] = []
    lower: list[Expr] = []
    upper: list[Expr] = []
    for term in conjuncts(cond):
        match term:
            case Binary("lt" | "le" | "gt" | "ge" as op, a, b) if is_index(a) and is_index(b):
                if truth(term, facts) is not None:
                    continue
                below = negative_where(op, a, b)
                step = below.coefficient(x)
                rest = Affine(tuple(t for t in below.terms if t[0] != x), below.constant)
                if not step or rest.mentions(x):
                    continue
                terms.append(term)
                if step > 0:  # x < -rest / step
                    upper.append(_plus_one(rest.scale(-1) + Affine((), -1), step))
                else:  # x > rest / -step
                    lower.append(_plus_one(rest, -step))
            case _:
                pass
    return Guard(cond, tuple(terms), tuple(lower), tuple(upper)) if terms else None


def _plus_one(a: Affine, divisor: int) -> Expr:
    """a // divisor + 1"""
    quotient = affine(Binary("floordiv", a.expr, idx(divisor)))
    return add(quotient.expr, idx(1))
