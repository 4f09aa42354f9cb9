"""Loads on whose execution data decides, executed in any case: at a place that exists where they would not be.

Without branches the loads of several terms of a sum are in flight together: MoE layers add the rows of those experts that are there.
"""

from collections.abc import Callable

from monotile.analysis.unconditional import TRUE, both
from monotile.ir.expr import Binary, Expr, Load, Select, Tensor, Unary, idx, loads, rebuild
from monotile.ir.intervals import interval


def speculative(e: Expr, there: Callable[[Tensor], bool]) -> tuple[Expr, tuple[Load, ...]]:
    """`e` with such loads at safe places, and these, each after those in its index. there: whether the first element of a tensor can be loaded at
    any time. Loads under conditions on indices alone stay as they are."""
    moved: dict[Load, None] = {}

    def go(x: Expr, when: Expr) -> Expr:
        match x:
            case Load(t, index) if when != TRUE:
                at = [go(i, when) for i in index]
                if not there(t) or not all(loads(i) or _inside(i, n) for i, n in zip(at, t.shape, strict=True)):  # fmt: skip
                    return Load(t, tuple(at))
                found = Load(t, tuple(Select(when, i, idx(0)) if loads(i) else i for i in at))
                moved[found] = None
                return found
            case Select(cond, then, otherwise) if loads(cond):
                cond = go(cond, when)
                fails = Unary("not", cond)
                return Select(cond, go(then, both(when, cond)), go(otherwise, both(when, fails)))
            case Select():
                return x
            case Binary("and" | "or" as op, a, b):
                return Binary(op, go(a, when), b)
            case _:
                return rebuild(x, lambda y: go(y, when))

    return go(e, TRUE), tuple(moved)


def _inside(i: Expr, extent: int) -> bool:
    found = interval(i)
    return found is not None and found.inside(0, extent - 1)
