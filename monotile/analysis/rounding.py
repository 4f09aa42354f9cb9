"""Predicates that rounding may change: a value can be finite in float32 and infinite in float16."""

from monotile.ir.expr import Unary, loads, walk
from monotile.ir.program import Compute, Scatter


def rounding_sensitive_operands(s: Compute | Scatter) -> frozenset[str]:
    """Tensors on which `s` evaluates such predicates; they have to read the stored, rounded values."""
    if isinstance(s, Scatter):
        return frozenset(x.tensor.name for x in loads(s.value))
    asks = (e for e in walk(s.body) if isinstance(e, Unary) and e.op == "isinf")
    return frozenset(x.tensor.name for e in asks for x in loads(e))
