"""Masked loads (padding): zero where a condition does not hold."""

import functools
from collections.abc import Mapping

import msgspec

from monotile.analysis.affine import Affine, offset
from monotile.analysis.unconditional import TRUE, both
from monotile.ir.expr import (
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    known,
    loads,
    rebuild,
)
from monotile.ir.program import Compute


class Masked(msgspec.Struct, frozen=True):
    """`load` where `cond`, a condition on axes and sizes, holds; zero elsewhere."""

    load: Load
    cond: Expr


@functools.lru_cache(maxsize=4096)
def masked(e: Expr) -> Masked | None:
    """`e` as a masked load, or None. The condition of a plain Load is true."""
    match e:
        case Load():
            return Masked(e, TRUE)
        case Select(cond, then, Const(0)):
            return _where(cond, then)
        case Select(cond, Const(0), otherwise):
            return _where(Unary("not", cond), otherwise)
        case _:
            return None


def _where(cond: Expr, e: Expr) -> Masked | None:
    found = masked(e)
    return None if found is None or not known(cond) else Masked(found.load, both(cond, found.cond))


def without_masks(e: Expr, held: Mapping[Load, Expr]) -> Expr:
    """`e` without the masks of the loads in `held`, which were loaded under the same condition and are zero elsewhere."""
    match e:
        case Select(cond, (Load() as x) | Cast(Load() as x), Const(0)) if held.get(x) == cond:
            return e.then
        case _:
            return rebuild(e, lambda x: without_masks(x, held))


def copies_rows(c: Compute) -> bool:
    """Whether `c` copies neighbours along its last axis up to a constant, and has zeros from there on."""
    found = masked(c.body) if c.combiner is None and c.axes else None
    match found:
        case Masked(x, Binary("lt", Axis() as a, Const())) if a == c.axes[-1]:
            where = offset(x)
            rest = Affine(tuple(t for t in where.terms if t[0] != a))
            known = not any(loads(i) for i in x.index)
            return known and where.coefficient(a) == 1 and not rest.mentions(a)
        case _:
            return False
