"""Element-wise operators."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from monotile.frontends.builder import Builder, Operand, Unsupported, elementwise
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.promotion import result_type
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, const

Lowering = Callable[..., Any]


def _in_result_type(f: Callable[..., Expr]) -> Lowering:
    """A lowering whose arguments are all operands, computed in the result's type."""
    return lambda b, *operands, **_: elementwise(b, operands, f, b.dtype.compute)


def _unary(name: str) -> Lowering:
    return _in_result_type(lambda x: s.call(name, x))


def _binary(name: str) -> Lowering:
    return _in_result_type(lambda x, y: s.op(name, x, y))


def _integral_is_identity(name: str) -> Lowering:
    """A rounding operator: integers stay as they are."""

    def lower(b: Builder, x: Tensor) -> Tensor:
        return (
            elementwise(b, (x,), lambda v: s.call(name, v), b.dtype.compute)
            if (b.dtype.is_float)
            else x
        )

    return lower


# Arithmetic


def add(b: Builder, x: Operand, y: Operand, alpha: int | float = 1) -> Tensor:
    """x + alpha * y; on bool, or."""
    if b.dtype is DType.BOOL:
        return elementwise(b, (x, y), s.either, DType.BOOL)
    scaled = (lambda v: v) if alpha == 1 else (lambda v: s.mul(v, alpha))
    return elementwise(b, (x, y), lambda u, v: s.add(u, scaled(v)), b.dtype.compute)


def sub(b: Builder, x: Operand, y: Operand, alpha: int | float = 1) -> Tensor:
    scaled = (lambda v: v) if alpha == 1 else (lambda v: s.mul(v, alpha))
    return elementwise(b, (x, y), lambda u, v: s.sub(u, scaled(v)), b.dtype.compute)


def rsub(b: Builder, x: Operand, y: Operand, alpha: int | float = 1) -> Tensor:
    return sub(b, y, x, alpha)


def mul(b: Builder, x: Operand, y: Operand) -> Tensor:
    """On bool, and."""
    f = s.both if b.dtype is DType.BOOL else s.mul
    return elementwise(b, (x, y), f, b.dtype.compute)


def _floor_divided(u: Expr, v: Expr) -> Expr:
    """Python's floor division of floats, exact where the quotient would round up to an integer."""
    remainder = s.op("fmod", u, v)
    exact = s.div(s.sub(u, remainder), v)
    down = s.both(s.ne(remainder, 0), s.ne(s.lt(v, 0), s.lt(remainder, 0)))
    quotient = s.select(down, s.sub(exact, 1), exact)
    floored = s.call("floor", quotient)
    nearest = s.select(s.gt(s.sub(quotient, floored), 0.5), s.add(floored, 1), floored)
    plain = s.div(u, v)
    zero = s.op("copysign", const(0.0, u.dtype), plain)
    return s.select(s.eq(v, 0), plain, s.select(s.eq(quotient, 0), zero, nearest))


def _truncated_quotient(u: Expr, v: Expr) -> Expr:
    return s.call("trunc", s.div(u, v))


def div(b: Builder, x: Operand, y: Operand, rounding_mode: str | None = None) -> Tensor:
    common = result_type((x, y))
    match rounding_mode:
        case None:
            return elementwise(b, (x, y), s.div, b.dtype.compute)
        case "floor":
            f = _floor_divided if common.is_float else s.floordiv
        case "trunc" if common.is_float:
            f = _truncated_quotient
        case "trunc":
            f = partial(s.op, "truncdiv")
        case _:
            raise Unsupported(f"rounding_mode={rounding_mode!r}")
    return elementwise(b, (x, y), f, common.compute)


def floor_divide(b: Builder, x: Operand, y: Operand) -> Tensor:
    return div(b, x, y, "floor")


def remainder(b: Builder, x: Operand, y: Operand) -> Tensor:
    """The result has the divisor's sign."""
    if not b.dtype.is_float:
        return elementwise(b, (x, y), s.mod, b.dtype)

    def f(u: Expr, v: Expr) -> Expr:
        r = s.op("fmod", u, v)
        return s.select(s.both(s.ne(r, 0), s.ne(s.lt(r, 0), s.lt(v, 0))), s.add(r, v), r)

    return elementwise(b, (x, y), f, b.dtype.compute)


def fmod(b: Builder, x: Operand, y: Operand) -> Tensor:
    name = "fmod" if b.dtype.is_float else "rem"
    return elementwise(b, (x, y), lambda u, v: s.op(name, u, v), b.dtype.compute)


_POWERS: Mapping[float, Callable[[Expr], Expr]] = {
    0.5: lambda x: s.call("sqrt", x),
    -0.5: lambda x: s.call("rsqrt", x),
    -1.0: lambda x: s.div(1, x),
    -2.0: lambda x: s.div(1, s.mul(x, x)),
    1.0: lambda x: x,
    2.0: lambda x: s.mul(x, x),
    3.0: lambda x: s.mul(s.mul(x, x), x),
}


def power(b: Builder, x: Operand, y: Operand) -> Tensor:
    if b.dtype.is_float and isinstance(y, int | float) and float(y) in _POWERS:
        return elementwise(b, (x,), _POWERS[float(y)], b.dtype.compute)
    name = "pow" if b.dtype.is_float else "ipow"
    return elementwise(b, (x, y), lambda u, v: s.op(name, u, v), b.dtype.compute)


def square(b: Builder, x: Tensor) -> Tensor:
    return elementwise(b, (x,), lambda v: s.mul(v, v), b.dtype.compute)


def addcmul(b: Builder, x: Operand, y: Operand, z: Operand, value: int | float = 1) -> Tensor:
    def f(u: Expr, v: Expr, w: Expr) -> Expr:
        return s.add(u, s.mul(v if value == 1 else s.mul(v, value), w))

    return elementwise(b, (x, y, z), f, b.dtype.compute)


def addcdiv(b: Builder, x: Operand, y: Operand, z: Operand, value: int | float = 1) -> Tensor:
    def f(u: Expr, v: Expr, w: Expr) -> Expr:
        return s.add(u, s.div(v if value == 1 else s.mul(v, value), w))

    return elementwise(b, (x, y, z), f, b.dtype.compute)


def _lerp(x: Expr, y: Expr, w: Expr) -> Expr:
    far = s.sub(y, s.mul(s.sub(y, x), s.sub(1, w)))
    near = s.add(x, s.mul(w, s.sub(y, x)))
    return s.select(s.lt(s.call("abs", w), 0.5), near, far)


def clamp(b: Builder, x: Operand, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    operands = [v for v in (x, min, max) if v is not None]

    def f(v: Expr, *bounds: Expr) -> Expr:
        rest = iter(bounds)
        if min is not None:
            v = s.maximum(v, next(rest))
        return v if max is None else s.minimum(v, next(rest))

    return elementwise(b, operands, f, b.dtype.compute)


def clamp_max(b: Builder, x: Operand, max: Operand) -> Tensor:
    return clamp(b, x, None, max)


def _fmax(x: Expr, y: Expr) -> Expr:
    return s.select(s.isnan(x), y, s.select(s.isnan(y), x, s.maximum(x, y)))


def _fmin(x: Expr, y: Expr) -> Expr:
    return s.select(s.isnan(x), y, s.select(s.isnan(y), x, s.minimum(x, y)))


def _extremum(name: str, ignoring_nan: Callable[[Expr, Expr], Expr]) -> Lowering:
    def lower(b: Builder, x: Operand, y: Operand) -> Tensor:
        f = ignoring_nan if b.dtype.is_float else lambda u, v: s.op(name, u, v)
        return elementwise(b, (x, y), f, b.dtype.compute)

    return lower


def sign(b: Builder, x: Tensor) -> Tensor:
    if x.dtype is DType.BOOL:
        return x

    def f(v: Expr) -> Expr:
        negative = s.select(s.lt(v, 0), const(-1, v.dtype), const(0, v.dtype))  # NaN gives 0
        return s.select(s.gt(v, 0), const(1, v.dtype), negative)

    if x.dtype is DType.U8:
        return elementwise(b, (x,), lambda v: s.minimum(v, 1), x.dtype)
    return elementwise(b, (x,), f, b.dtype.compute)


def absolute(b: Builder, x: Tensor) -> Tensor:
    if x.dtype in (DType.BOOL, DType.U8):
        return x
    return elementwise(b, (x,), lambda v: s.call("abs", v), b.dtype.compute)


def round_(b: Builder, x: Tensor, decimals: int = 0) -> Tensor:
    """Rounds half to even."""
    if not b.dtype.is_float:
        return x
    scale = 10.0 ** abs(decimals)

    def f(v: Expr) -> Expr:
        if decimals == 0:
            return s.call("round", v)
        if decimals > 0:
            return s.div(s.call("round", s.mul(v, scale)), scale)
        return s.mul(s.call("round", s.div(v, scale)), scale)

    return elementwise(b, (x,), f, b.dtype.compute)


def _xlogy(x: Expr, y: Expr) -> Expr:
    zero = const(0, x.dtype)
    return s.select(s.isnan(y), y, s.select(s.eq(x, 0), zero, s.mul(x, s.call("log", y))))


def _logaddexp(x: Expr, y: Expr) -> Expr:
    far = s.maximum(x, y)
    apart = s.call("log1p", s.exp(s.neg(s.call("abs", s.sub(x, y)))))
    return s.select(s.both(s.call("isinf", x), s.eq(x, y)), x, s.add(far, apart))


LOWERINGS: Mapping[str, Lowering] = {
    **{
        f"aten.{name}": _unary(name)
        for name in [
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "sqrt",
            "rsqrt",
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "sinh",
            "cosh",
            "tanh",
            "asinh",
            "acosh",
            "atanh",
            "erf",
            "erfc",
            "lgamma",
        ]
    },
    **{f"aten.{name}": _integral_is_identity(name) for name in ["floor", "ceil", "trunc"]},
    "aten.special_erf": _unary("erf"),
    "aten.special_erfc": _unary("erfc"),
    "aten.special_expm1": _unary("expm1"),
    "aten.special_log1p": _unary("log1p"),
    "aten.special_xlogy": _in_result_type(_xlogy),
    "aten.arctan2": _binary("atan2"),
    "aten.fix": _integral_is_identity("trunc"),
    **dict.fromkeys(("aten.neg", "aten._neg_view"), _unary("neg")),
    "aten.abs": absolute,
    "aten.sign": sign,
    "aten.sgn": sign,
    "aten.round": round_,
    "aten.square": square,
    "aten.reciprocal": _in_result_type(lambda x: s.div(1, x)),
    "aten.frac": _in_result_type(lambda x: s.sub(x, s.call("trunc", x))),
    "aten.sinc": _in_result_type(
        lambda x: s.select(
            s.eq(x, 0),
            const(1, x.dtype),
            s.div(s.call("sin", s.mul(x, math.pi)), s.mul(x, math.pi)),
        )
    ),
    "aten.deg2rad": _in_result_type(lambda x: s.mul(x, math.pi / 180)),
    "aten.angle": _in_result_type(
        lambda x: s.select(
            s.isnan(x), x, s.select(s.lt(x, 0), const(math.pi, x.dtype), const(0, x.dtype))
        )
    ),
    "aten.rad2deg": _in_result_type(lambda x: s.mul(x, 180 / math.pi)),
    "aten.add": add,
    "aten.sub": sub,
    "aten.rsub": rsub,
    "aten.mul": mul,
    "aten.div": div,
    "aten.true_divide": div,
    "aten.floor_divide": floor_divide,
    "aten.remainder": remainder,
    "aten.fmod": fmod,
    "aten.pow": power,
    "aten.addcmul": addcmul,
    "aten.addcdiv": addcdiv,
    "aten.lerp": _in_result_type(_lerp),
    "aten.maximum": _binary("max"),
    "aten.minimum": _binary("min"),
    "aten.max.other": _binary("max"),
    "aten.min.other": _binary("min"),
    "aten.fmax": _extremum("max", _fmax),
    "aten.fmin": _extremum("min", _fmin),
    "aten.atan2": _binary("atan2"),
    "aten.copysign": _binary("copysign"),
    "aten.nextafter": _binary("nextafter"),
    "aten.ldexp": _in_result_type(lambda x, n: s.mul(x, s.op("pow", const(2.0, x.dtype), n))),
    "aten.hypot": _binary("hypot"),
    "aten.xlogy": _in_result_type(_xlogy),
    "aten.logaddexp": _in_result_type(_logaddexp),
    "aten.clamp": clamp,
    "aten.clip": clamp,
    "aten.clamp_min": clamp,
    "aten.clamp_max": clamp_max,
    "aten.bitwise_not": _in_result_type(s.negation),
    "aten.bitwise_left_shift": _binary("shl"),
    "aten.bitwise_right_shift": _binary("shr"),
    "aten.__lshift__": _binary("shl"),
    "aten.__rshift__": _binary("shr"),
}
