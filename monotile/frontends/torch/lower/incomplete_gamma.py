"""The regularised incomplete gamma functions, by numerical integration with fixed nodes."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from monotile.frontends.builder import Builder, Operand, Unsupported, element, load
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, const, idx

Lowering = Callable[..., Any]

_PLACES = 128


def _rule() -> np.ndarray:
    """[2, nodes]: nodes and weights for integrals over v > 0 of functions of any decay (exp-sinh quadrature; Mori, 2005)."""
    t = np.linspace(-3.5, 2.5, _PLACES)
    v = np.exp(math.pi / 2 * np.sinh(t))
    return np.stack([v, (t[1] - t[0]) * math.pi / 2 * np.cosh(t) * v])


def _integrand(a: Expr, x: Expr, place: Expr, weight: Expr) -> Expr:
    """The integrand after substituting t = x exp(-v) below x <= a, and t = x exp(v) above: both have their only peak at v = 0, and decrease
    from there."""
    lower = s.le(x, a)
    falls = s.add(s.call("abs", s.sub(a, x)), s.call("sqrt", s.maximum(a, x)))
    reach = s.select(lower, s.div(1, falls), s.call("log1p", s.div(1, falls)))
    v = s.mul(s.select(lower, s.neg(place), place), reach)
    power = s.sub(s.mul(a, v), s.mul(x, s.call("expm1", v)))
    return s.mul(s.mul(s.exp(power), weight), reach)


def _regularised(upper: bool) -> Lowering:
    """P(a, x), or Q(a, x) = 1 - P(a, x). The smaller one is computed, as the integral of t^(a-1) exp(-t) / gamma(a) on its side of x."""

    def value(a: Expr, x: Expr, integral: Expr) -> Expr:
        scale = s.sub(s.sub(s.mul(a, s.call("log", x)), x), s.call("lgamma", a))
        own = s.mul(s.exp(scale), integral)
        below = s.le(x, a)
        part = s.select(below, s.sub(1, own), own) if upper else s.select(below, own, s.sub(1, own))
        none, all_ = (const(float(v), x.dtype) for v in (upper, not upper))
        part = s.select(s.either(s.eq(x, 0), s.eq(a, math.inf)), none, part)
        part = s.select(s.eq(x, math.inf), all_, part)
        undefined = s.either(s.lt(x, 0), s.lt(a, 0))
        for end in (0.0, math.inf):
            undefined = s.either(undefined, s.both(s.eq(x, end), s.eq(a, end)))
        return s.select(undefined, const(math.nan, x.dtype), part)

    def lower(b: Builder, a: Operand, x: Operand) -> Tensor:
        if b.dtype is DType.F64:
            raise Unsupported("in float64")
        rule = b.constant(_rule())

        def term(*axes: Expr) -> Expr:
            *i, k = axes
            place, weight = (load(rule, [idx(row), k]) for row in (0, 1))
            return _integrand(element(a, i, DType.F64), element(x, i, DType.F64), place, weight)

        total = b.emit(b.shape, DType.F64, term, reduce=(_PLACES,), combiner="sum", part="integral")
        return b.result(
            lambda *i: value(element(a, i, DType.F64), element(x, i, DType.F64), load(total, i))
        )

    return lower


LOWERINGS: Mapping[str, Lowering] = {
    "aten.igamma": _regularised(upper=False),
    "aten.igammac": _regularised(upper=True),
    "aten.special_gammainc": _regularised(upper=False),
    "aten.special_gammaincc": _regularised(upper=True),
}
