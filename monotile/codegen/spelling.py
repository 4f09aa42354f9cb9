"""The C text of types, literals and operations, common to C and CUDA C++."""

from collections.abc import Mapping

import numpy as np

from monotile.errors import InternalError
from monotile.ir.dtype import DType
from monotile.ir.expr import COMPARE, OF_BITS, Const, const
from monotile.ir.intervals import type_range
from monotile.ir.scalar import constant

SUFFIX: Mapping[DType, str] = {
    DType.BOOL: "b1",
    DType.U8: "u8",
    DType.I8: "i8",
    DType.I16: "i16",
    DType.I32: "i32",
    DType.I64: "i64",
    DType.F8E4M3: "f32",
    DType.F8E5M2: "f32",
    DType.F8E8M0: "f32",
    DType.F16: "f32",
    DType.BF16: "f32",
    DType.F32: "f32",
    DType.F64: "f64",
}
# Floats that are stored in fewer bits than their values have.
SMALL_FLOATS: Mapping[DType, str] = {
    DType.F8E4M3: "f8e4m3",
    DType.F8E5M2: "f8e5m2",
    DType.F8E8M0: "f8e8m0",
    DType.F16: "f16",
    DType.BF16: "bf16",
}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_FLOAT = {"add": "+", "sub": "-", "mul": "*"}
_BITS = {"bitand": "&", "bitor": "|", "bitxor": "^"}
_LOGIC = {"and": "&&", "or": "||"}


def bare(text: str) -> str:
    """`text` without the parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and position < len(text) - 1:
            return text
    return text[1:-1]


def literal(e: Const) -> str:
    """A constant, in the type that holds its element type."""
    match e.dtype:
        case DType.BOOL:
            return "true" if e.value else "false"
        case DType.I64:
            value = int(e.value)
            return "(-9223372036854775807LL - 1)" if value == -(1 << 63) else _signed(f"{value}LL")
        case DType.I32:
            value = int(e.value)
            return "(-2147483647 - 1)" if value == -(1 << 31) else _signed(str(value))
        case DType.U8 | DType.I8 | DType.I16:
            return _signed(str(int(e.value)))
        case DType.F64:
            value = float(e.value)
            if not np.isfinite(value):
                return f"(double){_special(value)}"
            return _signed(repr(value))
        case _:
            single = np.float32(constant(e.value, e.dtype))
            if not np.isfinite(single):
                return _special(float(single))
            return _signed(f"{single!s}f")


def _signed(text: str) -> str:
    return f"({text})" if text.startswith("-") else text


def _special(value: float) -> str:
    return "MT_NAN" if value != value else "MT_INF" if value > 0 else "(-MT_INF)"


def rounded(text: str, dtype: DType) -> str:
    """A float rounded to a smaller type."""
    return f"mt_round_{SMALL_FLOATS[dtype]}({bare(text)})"


_PLAIN = {
    DType.U8: "uint8_t",
    DType.I8: "int8_t",
    DType.I16: "int16_t",
    DType.I32: "int32_t",
    DType.I64: "int64_t",
    DType.F32: "float",
    DType.F64: "double",
}


_EXACT = (DType.U8, DType.I8, DType.F8E4M3, DType.F8E5M2)  # in a 16-bit float, either


def convert(text: str, source: DType, target: DType) -> str:
    """The value of a Cast."""
    if source is target:
        return text
    match target:
        case DType.BOOL:
            return f"({text} != 0)"
        case DType.F16 | DType.BF16 if source in _EXACT:
            return text if source.is_float else f"(float){text}"
        case _ if target in SMALL_FLOATS:
            if source.compute is DType.F32:
                return rounded(text, target)
            if source is DType.F64 and not target.is_float8:
                return rounded(f"mt_odd_f32({bare(text)})", target)
            return rounded(f"(float){text}", target)
        case DType.F32:
            return text if source.compute is DType.F32 else f"(float){text}"
        case _ if source.is_float and not target.is_float:
            whole = f"mt_to_int_{SUFFIX[source.compute]}({bare(text)})"
            narrow = target in (DType.U8, DType.I8, DType.I16)
            return f"({_PLAIN[target]}){'(int32_t)' if narrow else ''}{whole}"
        case _:
            return f"({_PLAIN[target]}){text}"


def unary(op: str, x: str, dtype: DType) -> str:
    """An operation on the value `x` of type `dtype`."""
    match op:
        case "neg" if dtype.is_float:
            return f"(-{x})"
        case "not":
            return f"(!{x})" if dtype is DType.BOOL else convert(f"(~{x})", DType.I32, dtype)
        case "tf32" | "is_tf32" | "ascends":
            return x
        case "bits":
            return f"mt_bits_{SMALL_FLOATS.get(dtype) or SUFFIX[dtype]}({bare(x)})"
        case _ if op in OF_BITS:
            return f"mt_{op}({bare(x)})"
        case "isnan":
            return f"({x} != {x})" if dtype.is_float else "false"
        case "isinf" if not dtype.is_float:
            return "false"
        case "abs" if dtype in (DType.BOOL, DType.U8):
            return x
        case _:
            return f"mt_{op}_{SUFFIX[dtype]}({bare(x)})"


def binary(op: str, a: str, b: str, dtype: DType) -> str:
    """An operation on two values of type `dtype`."""
    if op in COMPARE:
        return f"({a} {_COMPARE[op]} {b})"
    if op in _LOGIC:
        return f"({a} {_LOGIC[op]} {b})"
    if op in _FLOAT and dtype.is_float:
        return f"({a} {_FLOAT[op]} {b})"
    if op in _BITS:
        return f"({a} {_BITS[op]} {b})"
    return f"mt_{op}_{SUFFIX[dtype]}({bare(a)}, {bare(b)})"


def combine(combiner: str, a: str, b: str, dtype: DType) -> str:
    """Text of two values combined."""
    match combiner:
        case "sum" | "prod" if dtype.is_float:
            return f"({a} {'+' if combiner == 'sum' else '*'} {b})"
        case "sum" | "prod":
            return (
                f"mt_{'add' if combiner == 'sum' else 'mul'}_{SUFFIX[dtype]}({bare(a)}, {bare(b)})"
            )
        case "any" | "all":
            return f"({a} {'|' if combiner == 'any' else '&'} {b})"
        case "max" | "min" if dtype is DType.BOOL:
            return f"({a} {'|' if combiner == 'max' else '&'} {b})"
        case "max" | "min":
            return f"mt_{combiner}_{SUFFIX[dtype]}({bare(a)}, {bare(b)})"
        case _:
            raise InternalError(f"values are not combined with {combiner!r} one by one")


def identity(combiner: str, dtype: DType) -> Const:
    """The initial value of a reduction."""
    match combiner:
        case "sum" | "any":
            return const(0, dtype)
        case "prod" | "all":
            return const(1, dtype)
        case "max" | "min" if dtype.is_float:
            return const(float("-inf" if combiner == "max" else "inf"), dtype)
        case "max" | "min":
            whole = type_range(dtype)
            assert whole is not None
            return const(whole.lo if combiner == "max" else whole.hi, dtype)
        case _:
            raise InternalError(f"no identity of {combiner!r}")
