"""Comparisons, logic, bits and selection, element by element."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from monotile.frontends.builder import Builder, Operand, element, elementwise
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.promotion import result_type
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, const

Lowering = Callable[..., Any]


def _in_common_type(f: Callable[..., Expr]) -> Lowering:
    """A lowering whose arguments are all operands, computed in the type that they promote to (the result may be bool)."""
    return lambda b, *operands, **_: elementwise(b, operands, f, result_type(operands).compute)


def _logical(f: Callable[..., Expr]) -> Lowering:
    return lambda b, *operands: elementwise(b, operands, f, DType.BOOL)


def _compare(name: str) -> Lowering:
    return _in_common_type(lambda x, y: s.op(name, x, y))


def where(b: Builder, cond: Tensor, x: Operand, y: Operand) -> Tensor:
    def f(i: tuple[Expr, ...]) -> Expr:
        c = element(cond, i, DType.BOOL)
        return s.select(c, element(x, i, b.dtype), element(y, i, b.dtype))

    return b.result(lambda *i: f(i))


def masked_fill(b: Builder, x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return where(b, mask, value, x)


def isfinite(b: Builder, x: Tensor) -> Tensor:
    if not x.dtype.is_float:
        return b.result(lambda *i: const(True, DType.BOOL))
    return elementwise(
        b,
        (x,),
        lambda v: s.negation(s.either(s.call("isinf", v), s.isnan(v))),
        x.dtype.compute,
    )


def _float_test(f: Callable[[Expr], Expr]) -> Lowering:
    """A predicate that is false for every integer."""

    def lower(b: Builder, x: Tensor) -> Tensor:
        if not x.dtype.is_float:
            return b.result(lambda *i: const(False, DType.BOOL))
        return elementwise(b, (x,), f, x.dtype.compute)

    return lower


def nan_to_num(
    b: Builder,
    x: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    if not x.dtype.is_float:
        return x
    largest = _LARGEST[x.dtype]

    def f(v: Expr) -> Expr:
        low = s.select(s.eq(v, -math.inf), -largest if neginf is None else neginf, v)
        high = s.select(s.eq(v, math.inf), largest if posinf is None else posinf, low)
        return s.select(s.isnan(v), 0.0 if nan is None else nan, high)

    return elementwise(b, (x,), f, b.dtype.compute)


_LARGEST: Mapping[DType, float] = {
    DType.F8E4M3: 448.0,
    DType.F8E5M2: 57344.0,
    DType.F8E8M0: 2.0**127,
    DType.F16: 65504.0,
    DType.BF16: 3.3895313892515355e38,
    DType.F32: 3.4028234663852886e38,
    DType.F64: 1.7976931348623157e308,
}


def heaviside(b: Builder, x: Operand, values: Operand) -> Tensor:
    """0 below zero (and for NaN), 1 above it, `values` at it."""

    def f(u: Expr, v: Expr) -> Expr:
        above = s.select(s.gt(u, 0), const(1, u.dtype), const(0, u.dtype))
        return s.select(s.eq(u, 0), v, above)

    return elementwise(b, (x, values), f, b.dtype.compute)


# Bits


def _bitwise(bits: str, logic: Callable[[Expr, Expr], Expr]) -> Lowering:
    def lower(b: Builder, x: Operand, y: Operand) -> Tensor:
        if b.dtype is DType.BOOL:
            return elementwise(b, (x, y), logic, DType.BOOL)
        return elementwise(b, (x, y), lambda u, v: s.op(bits, u, v), b.dtype)

    return lower


LOWERINGS: Mapping[str, Lowering] = {
    "aten.heaviside": heaviside,
    **{f"aten.{name}": _compare(name) for name in ["eq", "ne", "lt", "le", "gt", "ge"]},
    "aten.signbit": _in_common_type(
        lambda x: s.lt(s.op("copysign", const(1, x.dtype), x) if x.dtype.is_float else x, 0)
    ),
    "aten.where.self": where,
    "aten.where.ScalarSelf": where,
    "aten.where.ScalarOther": where,
    "aten.where.Scalar": where,
    "aten.masked_fill": masked_fill,
    "aten.isnan": _float_test(s.isnan),
    "aten.isinf": _float_test(lambda x: s.call("isinf", x)),
    "aten.isposinf": _float_test(lambda x: s.eq(x, math.inf)),
    "aten.isneginf": _float_test(lambda x: s.eq(x, -math.inf)),
    "aten.isfinite": isfinite,
    "aten.nan_to_num": nan_to_num,
    "aten.bitwise_and": _bitwise("bitand", s.both),
    "aten.bitwise_or": _bitwise("bitor", s.either),
    "aten.bitwise_xor": _bitwise("bitxor", s.ne),
    "aten.__and__": _bitwise("bitand", s.both),
    "aten.__or__": _bitwise("bitor", s.either),
    "aten.__xor__": _bitwise("bitxor", s.ne),
    "aten.logical_and": _logical(s.both),
    "aten.logical_or": _logical(s.either),
    "aten.logical_xor": _logical(s.ne),
    "aten.logical_not": _logical(s.negation),
}
