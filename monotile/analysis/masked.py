"""Masked loads (padding) and selections between loads (concatenations): zero where no condition holds."""

import functools
from collections.abc import Mapping

import msgspec

from monotile.analysis.affine import Affine, offset
from monotile.analysis.unconditional import TRUE, both, negated
from monotile.ir.expr import Axis, Binary, Cast, Const, Expr, Load, Select, known, loads, rebuild
from monotile.ir.program import Compute


class Masked(msgspec.Struct, frozen=True):
    """`load` where `cond`, a condition on axes and sizes, holds; zero elsewhere."""

    load: Load
    cond: Expr


def masked(e: Expr) -> Masked | None:
    """`e` as a masked load, or None. The condition of a plain Load is true."""
    found = choice(e)
    return found[0] if found is not None and len(found) == 1 else None


@functools.lru_cache(maxsize=4096)
def choice(e: Expr) -> tuple[Masked, ...] | None:
    """`e` as masked loads of which at most one is not zero, or None."""
    match e:
        case Load():
            return (Masked(e, TRUE),)
        case Const(0):
            return ()
        case Select(cond, then, otherwise) if known(cond):
            found = choice(then), choice(otherwise)
            if found[0] is None or found[1] is None:
                return None
            kept = tuple(Masked(x.load, both(cond, x.cond)) for x in found[0])
            return kept + tuple(Masked(x.load, both(negated(cond), x.cond)) for x in found[1])
        case _:
            return None


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
