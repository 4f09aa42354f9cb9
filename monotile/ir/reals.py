"""Interval analysis of floating-point expressions of axes and literals, mostly coordinates.

Sound, not exact. Every operation rounds once, in its own type or a wider one, which widens the bounds accordingly.
"""

import functools
import math
from collections.abc import Callable

import ml_dtypes

from monotile.ir.dtype import DType
from monotile.ir.expr import Binary, Cast, Const, Expr, Unary

Span = tuple[float, float]  # finite, both included
Integers = Callable[[Expr], tuple[int, int] | None]  # the range of an integer type


def span(e: Expr, integers: Integers) -> Span | None:
    """The interval of `e`; None if unknown. Loaded values are unknown: they may be infinite or NaN."""
    match e:
        case Const(value):
            found = (float(value), float(value))
        case Cast(x) if x.dtype.is_float:
            found = span(x, integers)
        case Cast(x):
            found = integers(x)
        case Unary("floor" | "ceil" | "trunc" as op, x):
            inner, f = span(x, integers), {"floor": math.floor, "ceil": math.ceil}.get(op, math.trunc)  # fmt: skip
            found = None if inner is None else (f(inner[0]), f(inner[1]))
        case Unary("neg", x):
            inner = span(x, integers)
            found = None if inner is None else (-inner[1], -inner[0])
        case Binary(op, x, y):
            a, b = span(x, integers), span(y, integers)
            found = None if a is None or b is None else _binary(op, a, b)
        case _:
            return None
    return None if found is None else _rounded(float(found[0]), float(found[1]), e.dtype)


def _binary(op: str, a: Span, b: Span) -> Span | None:
    match op:
        case "add":
            return a[0] + b[0], a[1] + b[1]
        case "sub":
            return a[0] - b[1], a[1] - b[0]
        case "mul":
            corners = [x * y for x in a for y in b]
            return min(corners), max(corners)
        case "div" if b[0] > 0 or b[1] < 0:
            corners = [x / y for x in a for y in b]
            return min(corners), max(corners)
        case "min":
            return min(a[0], b[0]), min(a[1], b[1])
        case "max":
            return max(a[0], b[0]), max(a[1], b[1])
        case _:
            return None


@functools.cache
def _limits(dtype: DType) -> tuple[float, float]:
    """The unit in the last place of 1, and the largest number."""
    info = ml_dtypes.finfo(dtype.numpy)
    return float(info.eps), float(info.max)


def _rounded(lo: float, hi: float, dtype: DType) -> Span | None:
    if dtype.is_float8:
        return None
    unit, most = _limits(dtype)
    found = lo - unit * abs(lo), hi + unit * abs(hi)
    return found if -most < found[0] and found[1] < most else None
