"""Questions that rounding may answer otherwise: of a value that is finite in float32 and infinite in float16."""

from monotile.ir.expr import Unary, loads, walk
from monotile.ir.program import Compute, Scatter


def asked_of(s: Compute | Scatter) -> frozenset[str]:
    """Tensors whose values `s` asks questions about that rounding may answer otherwise: they are asked of what is stored."""
    if isinstance(s, Scatter):
        return frozenset(x.tensor.name for x in loads(s.value))
    asks = (e for e in walk(s.body) if isinstance(e, Unary) and e.op == "isinf")
    return frozenset(x.tensor.name for e in asks for x in loads(e))
