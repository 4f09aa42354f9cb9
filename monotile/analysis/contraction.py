"""Which Computes are sums of products, and how their axes take part (the index classes of an einsum)."""

import msgspec

from monotile.ir.dtype import DType
from monotile.ir.expr import Binary, Cast, Expr, axes_of
from monotile.ir.program import Compute


class Contraction(msgspec.Struct, frozen=True):
    """out[batch, m, n] = sum over k of left[batch, m, k] * right[batch, n, k].

    left, right:    the factors, without the cast to the type that products are summed in.
    batch, m, n:    positions in the Compute's axes, ascending; `n` holds the last axis if m or n does.
    k:              positions in the Compute's reduce axes.
    """

    left: Expr
    right: Expr
    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]


def contraction(c: Compute) -> Contraction | None:
    """`c` as a contraction, or None if it is not a sum over a product of two factors."""
    if c.combiner != "sum" or not (isinstance(c.body, Binary) and c.body.op == "mul"):
        return None
    left, right = _uncast(c.body.a), _uncast(c.body.b)
    in_left, in_right = axes_of(left), axes_of(right)
    if not any(r in in_left and r in in_right for r in c.reduce):
        return None
    m = tuple(p for p, a in enumerate(c.axes) if a in in_left and a not in in_right)
    n = tuple(p for p, a in enumerate(c.axes) if a in in_right and a not in in_left)
    batch = tuple(p for p in range(len(c.axes)) if p not in m and p not in n)
    if (len(c.axes) - 1) in m:
        left, right, m, n = right, left, n, m
    return Contraction(left, right, batch, m, n, tuple(range(len(c.reduce))))


def _uncast(e: Expr) -> Expr:
    """The value before a cast from a 16-bit float to the float32 it is summed in."""
    match e:
        case Cast(x, DType.F32) if x.dtype in (DType.F16, DType.BF16):
            return x
        case _:
            return e
