"""Masked loads (padding): zero where a condition does not hold."""

import functools
from collections.abc import Mapping

import msgspec

from monotile.analysis.unconditional import TRUE, both
from monotile.ir.expr import Cast, Const, Expr, Load, Select, Unary, known, rebuild


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
