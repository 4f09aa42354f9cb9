"""Rounding to 16-bit floats: values before it, and predicates that it may change, as a value can be finite in float32 and infinite in
float16."""

from monotile.ir.dtype import DType
from monotile.ir.expr import Cast, Expr, Unary, loads, walk
from monotile.ir.program import Compute, Scatter


def rounding_sensitive_operands(s: Compute | Scatter) -> frozenset[str]:
    """Tensors on which `s` evaluates such predicates; they have to read the stored, rounded values."""
    if isinstance(s, Scatter):
        return frozenset(x.tensor.name for x in loads(s.value))
    asks = (e for e in walk(s.body) if isinstance(e, Unary) and e.op == "isinf")
    return frozenset(x.tensor.name for e in asks for x in loads(e))


def unrounded(e: Expr) -> Expr:
    """`e` before it is rounded to a 16-bit float, for readers that round when they store."""
    match e:
        case Cast(x, DType.F16 | DType.BF16) if x.dtype is DType.F32:
            return x
        case _:
            return e
