"""Between which integers a tensor's elements are, whatever the sizes, by the statements that have been lowered so far."""

from collections.abc import Iterable

import msgspec

from monotile.frontends.torch.sizes.size import bounds
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Const, Expr, Load, SizeTensor, Symbolic, Tensor, rebuild
from monotile.ir.intervals import Interval, type_range
from monotile.ir.program import Compute, Scatter, Statement
from monotile.transform.simplify.element_ranges import ElementRanges


def values_of(x: Tensor, statements: Iterable[Statement]) -> Interval | None:
    """The range of the elements of `x` within its sizes; None for floats."""
    found = ElementRanges()
    for s in statements:
        if isinstance(s, Compute | Scatter) and s.out.dtype.is_int and (made := _plain(s, found)):
            found.learn(made)
    return found.known.get(x.name, type_range(x.dtype))


def _plain(s: Compute | Scatter, found: ElementRanges) -> Compute | Scatter | None:
    """`s` with the most elements that it can have, and with sizes as scalars whose ranges are known; None for a reduction over a size."""

    def go(e: Expr) -> Expr:
        match e:
            case Axis(name, extent):
                return Axis(name, int(extent))
            case Const(Symbolic() as n, _):
                size = SizeTensor(f"size {n!r}", (), DType.I64)
                found.known[size.name] = Interval(*bounds(n))
                return Load(size, ())
            case Load():
                return e
            case _:
                return rebuild(e, go)

    if isinstance(s, Scatter):
        return msgspec.structs.replace(s, value=go(s.value))
    if any(isinstance(a.extent, Symbolic) for a in s.reduce):
        return None
    return msgspec.structs.replace(s, body=go(s.body))
