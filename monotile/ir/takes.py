"""Which operations the values of a type can be operands of."""

from monotile.ir.dtype import DType
from monotile.ir.expr import (
    ARITHMETIC,
    BINARY,
    BITS,
    BITS_OF,
    COMPARE,
    FLOAT_BINARY,
    FLOAT_UNARY,
    INT_BINARY,
    LOGIC,
    OF_BITS,
    TF32_FACTORS,
    UNARY,
)


def takes_unary(op: str, dtype: DType) -> bool:
    """Whether values of the type can be the operand of a Unary."""
    if op == "bits":
        return dtype in BITS_OF
    if dtype.is_float8:
        return False
    if op in FLOAT_UNARY or op in ("isnan", "isinf"):
        return dtype.is_float
    if op in TF32_FACTORS or op == "to_tf32":
        return dtype is DType.F32
    if op in OF_BITS:
        return dtype is BITS_OF[OF_BITS[op]]
    if op == "ascends":
        return dtype is DType.U8
    if op == "not":
        return not dtype.is_float
    return op in UNARY and dtype is not DType.BOOL


def takes_binary(op: str, dtype: DType) -> bool:
    """Whether they can be both operands of a Binary."""
    if dtype.is_float8:
        return False
    if op in LOGIC:
        return dtype is DType.BOOL
    if op in FLOAT_BINARY:
        return dtype.is_float
    if op in INT_BINARY or op in ("shl", "shr"):
        return dtype.is_int
    if op in BITS:
        return not dtype.is_float
    if op == "philox":
        return dtype is DType.I64
    if op in COMPARE or op in ("min", "max"):
        return True
    return op in BINARY and op in ARITHMETIC and dtype is not DType.BOOL
