"""PyTorch's type promotion (`torch.result_type`): tensors with dimensions take precedence over scalar tensors, these over numbers."""

from collections.abc import Iterable

from monotile.frontends.builder import Operand
from monotile.ir.dtype import DType
from monotile.ir.expr import Tensor

_INTS = (DType.I8, DType.I16, DType.I32, DType.I64)
_FLOATS = (DType.F32, DType.F64)


def promote(a: DType, b: DType) -> DType:
    """The smallest type that holds both."""
    if a is b or b is DType.BOOL:
        return a
    if a is DType.BOOL:
        return b
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.is_float:
        # float32 is the smallest type that holds both float16 and bfloat16.
        rank = {t: k for k, t in enumerate(_FLOATS)}
        return max((t if t in rank else DType.F32 for t in (a, b)), key=rank.__getitem__)
    if DType.U8 in (a, b):
        other = b if a is DType.U8 else a
        return DType.I16 if other is DType.I8 else other
    return max(a, b, key=_INTS.index)


def _category(t: DType | None) -> int:
    return 0 if t is None else 1 if t is DType.BOOL else 3 if t.is_float else 2


def result_type(operands: Iterable[Operand]) -> DType:
    """The type in which PyTorch computes an element-wise operator on `operands`."""
    kinds: list[DType | None] = [None, None, None]
    for x in operands:
        match x:
            case Tensor():
                which, dtype = 0 if x.shape else 1, x.dtype
            case bool():
                which, dtype = 2, DType.BOOL
            case int():
                which, dtype = 2, DType.I64
            case float():
                which, dtype = 2, DType.F32
        known = kinds[which]
        kinds[which] = dtype if known is None else promote(known, dtype)
    best: DType | None = None
    for kind in kinds:
        if _category(kind) > _category(best):
            best = kind
    if best is None:
        raise ValueError("no operands")
    return best
