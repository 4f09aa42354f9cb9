"""Special functions of one variable, by series that are accurate in float64 and have no branches."""

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from monotile.frontends.builder import Builder, Unsupported, elementwise
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.expr import Expr, Tensor, const

Lowering = Callable[..., Any]

_STEPS = 10  # asymptotic series are used from here on
_BERNOULLI = tuple(
    Fraction(b) for b in ("1/6", "-1/30", "1/42", "-1/30", "5/66", "-691/2730", "7/6", "-3617/510")
)


def _of(f: Callable[[Expr], Expr]) -> Lowering:
    return lambda b, x: elementwise(b, (x,), f, b.dtype.compute)


def _polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """A polynomial by Horner's scheme; the constant term is first."""
    total: Expr = const(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        total = s.add(s.mul(total, x), c)
    return total


def _power(x: Expr, n: int) -> Expr:
    out = x
    for _ in range(n - 1):
        out = s.mul(out, x)
    return out


def _cotangent(x: Expr) -> Expr:
    """cot(pi x), with an exact reduction of the angle."""
    angle = s.mul(s.sub(x, s.call("round", x)), math.pi)
    return s.div(s.call("cos", angle), s.call("sin", angle))


def digamma(x: Expr) -> Expr:
    """The digamma function: by reflection for negative x; then by the asymptotic series at x + 10, and the recurrence back."""
    negative = s.lt(x, 0)
    t = s.select(negative, s.sub(1, x), x)
    far = s.add(t, _STEPS)
    back = s.div(1, t)
    for k in range(1, _STEPS):
        back = s.add(back, s.div(1, s.add(t, k)))
    inverse = s.div(1, far)
    square = s.mul(inverse, inverse)
    series = [float(n / (2 * k)) for k, n in enumerate(_BERNOULLI, start=1)]
    tail = s.add(s.mul(inverse, 0.5), s.mul(square, _polynomial(series, square)))
    value = s.sub(s.sub(s.call("log", far), tail), back)
    value = s.select(negative, s.sub(value, s.mul(_cotangent(x), math.pi)), value)
    pole = s.both(negative, s.eq(x, s.call("trunc", x)))
    value = s.select(pole, const(math.nan, x.dtype), value)
    return s.select(s.eq(x, 0), s.op("copysign", const(math.inf, x.dtype), s.neg(x)), value)


def _zeta(order: int, q: Expr) -> Expr:
    """Hurwitz' zeta function of an integer order and of q > 0, by the Euler-Maclaurin formula."""
    far = s.add(q, _STEPS)
    inverse = s.div(1, far)
    rising = [math.prod(range(order, order + 2 * k - 1)) for k in range(1, len(_BERNOULLI) + 1)]
    series = [
        float(n * r / math.factorial(2 * k))
        for k, (n, r) in enumerate(zip(_BERNOULLI, rising, strict=True), start=1)
    ]
    tail = s.mul(inverse, _polynomial(series, s.mul(inverse, inverse)))
    total = s.mul(_power(inverse, order), s.add(tail, 0.5))
    total = s.add(total, s.div(_power(inverse, order - 1), order - 1))
    for k in reversed(range(_STEPS)):
        total = s.add(total, _power(s.div(1, s.add(q, k) if k else q), order))
    return total


def _cotangent_derivative(n: int) -> list[int]:
    """The n-th derivative of cot as a polynomial in cot: each step is -(1 + c^2) d/dc."""
    p = [0, 1]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(p)][1:]
        p = [-a - b for a, b in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]
    return p


def _polygamma(n: int, x: Expr) -> Expr:
    """The n-th derivative of digamma, n >= 1; negative x by reflection."""
    sign = 1 if n % 2 else -1
    negative = s.lt(x, 0)
    t = s.select(negative, s.sub(1, x), x)
    value = s.mul(_zeta(n + 1, t), float(sign * math.factorial(n)))
    coefficients = [float(c) * math.pi ** (n + 1) for c in _cotangent_derivative(n)]
    derivative = _polynomial(coefficients, _cotangent(x))
    reflected = s.neg(s.add(derivative, value if sign > 0 else s.neg(value)))
    value = s.select(negative, reflected, value)
    pole = s.both(s.le(x, 0), s.eq(x, s.call("floor", x)))
    return s.select(pole, const(sign * math.inf, x.dtype), value)


def polygamma(b: Builder, n: int, x: Tensor) -> Tensor:
    if n > 20:
        raise Unsupported(f"n={n}, over 20")
    f = partial(_polygamma, n) if n else digamma
    return elementwise(b, (x,), f, b.dtype.compute)


def erfinv(y: Expr) -> Expr:
    """Rational approximations for the centre and the tails, and two Newton steps."""
    size = s.call("abs", y)
    z = s.mul(y, y)
    centre = s.div(
        s.mul(y, _polynomial((0.886226899, -1.645349621, 0.914624893, -0.140543331), z)),
        _polynomial((1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801), z),
    )
    w = s.call("sqrt", s.neg(s.call("log", s.mul(s.sub(1, size), 0.5))))
    tail = s.div(
        _polynomial((-1.970840454, -1.624906493, 3.429567803, 1.641345311), w),
        _polynomial((1.0, 3.5438892, 1.6370678), w),
    )
    central = s.le(size, 0.7)
    x = s.call("abs", s.select(central, centre, tail))
    for _ in range(2):
        slope = s.mul(s.exp(s.neg(s.mul(x, x))), 2 / math.sqrt(math.pi))
        # In the tails erf has few digits left of its distance to 1.
        beyond = s.select(central, s.sub(s.call("erf", x), size), s.sub(s.sub(1, size), s.call("erfc", x)))  # fmt: skip
        x = s.sub(x, s.div(beyond, slope))
    x = s.op("copysign", x, y)
    return s.select(s.eq(size, 1), s.op("copysign", const(math.inf, y.dtype), y), x)


def _bessel(order: int, scaled: bool, x: Expr) -> Expr:
    """The modified Bessel function of order 0 or 1: its power series, and its asymptotic one from 20 on. scaled: times exp(-|x|)."""
    size = s.call("abs", x)
    near = [1.0]
    for k in range(1, 38):
        near.append(near[-1] / (k * (k + order)))
    far = [1.0]
    for k in range(1, 26):
        far.append(far[-1] * ((2 * k - 1) ** 2 - 4 * order) / (8 * k))
    quarter = s.mul(s.mul(size, size), 0.25)
    series = _polynomial(near, s.minimum(quarter, 100.0))
    asymptotic = s.div(_polynomial(far, s.div(1, s.maximum(size, 20.0))), s.mul(s.call("sqrt", size), math.sqrt(2 * math.pi)))  # fmt: skip
    if order:
        series = s.mul(series, s.mul(size, 0.5))
    if scaled:
        series = s.mul(series, s.exp(s.neg(size)))
    else:
        asymptotic = s.mul(s.exp(size), asymptotic)
    found = s.select(s.lt(size, 20), series, asymptotic)
    return s.select(s.lt(x, 0), s.neg(found), found) if order else found


def erfcx(x: Expr) -> Expr:
    """exp(x^2) erfc(x), and its asymptotic series from 6 on. x is split so that the larger part of the exponent is squared exactly."""
    high = s.div(s.call("round", s.mul(s.minimum(x, 6.0), 16.0)), 16.0)
    low = s.sub(s.minimum(x, 6.0), high)
    rest = s.mul(low, s.add(high, s.minimum(x, 6.0)))
    near = s.mul(s.mul(s.exp(s.mul(high, high)), s.exp(rest)), s.call("erfc", s.minimum(x, 6.0)))
    far = [1.0]
    for k in range(1, 27):
        far.append(-far[-1] * (2 * k - 1) / 2)
    inverse = s.div(1, s.maximum(x, 6.0))
    series = s.mul(_polynomial(far, s.mul(inverse, inverse)), s.mul(inverse, 1 / math.sqrt(math.pi)))  # fmt: skip
    return s.select(s.lt(x, 6), near, series)


_BESSEL = {
    f"i{order}{'e' if scaled else ''}": partial(_bessel, order, scaled)
    for order in (0, 1)
    for scaled in (False, True)
}
LOWERINGS: Mapping[str, Lowering] = {
    "aten.digamma": _of(digamma),
    "aten.special_digamma": _of(digamma),
    "aten.polygamma": polygamma,
    "aten.special_polygamma": polygamma,
    "aten.erfinv": _of(erfinv),
    "aten.special_erfinv": _of(erfinv),
    "aten.i0": _of(_BESSEL["i0"]),
    **{f"aten.special_{n}": _of(f) for n, f in _BESSEL.items()},
    "aten.special_erfcx": _of(erfcx),
}
