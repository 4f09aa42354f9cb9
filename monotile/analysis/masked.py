"""Loads of which some elements are zero instead: padding."""

import functools
from collections.abc import Mapping

import msgspec

from monotile.analysis.unconditional import TRUE, both
from monotile.ir.expr import Cast, Const, Expr, Load, Select, Unary, loads, rebuild


class Masked(msgspec.Struct, frozen=True):
    """`load` where `cond` holds, which depends on axes alone; zero elsewhere."""

    load: Load
    cond: Expr


@functools.lru_cache(maxsize=4096)
def masked(e: Expr) -> Masked | None:
    """`e` as such, or None. A plain Load holds everywhere."""
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
    return None if found is None or loads(cond) else Masked(found.load, both(cond, found.cond))


def without_masks(e: Expr, held: Mapping[Load, Expr]) -> Expr:
    """`e` without the masks of what `held` has: loaded under this very condition, and zero elsewhere."""
    match e:
        case Select(cond, (Load() as x) | Cast(Load() as x), Const(0)) if held.get(x) == cond:
            return e.then
        case _:
            return rebuild(e, lambda x: without_masks(x, held))
