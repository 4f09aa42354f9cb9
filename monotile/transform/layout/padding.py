"""Copies with permuted dimensions and zero padding."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from monotile.ir.expr import Axis, Binary, Expr, Load, Select, Tensor, const, idx
from monotile.ir.program import Compute, compute


def padded_copy(
    t: Tensor,
    name: str,
    order: Sequence[int],
    extents: Mapping[int, int],
    sizes: Mapping[int, Expr] = MappingProxyType({}),
) -> Compute:
    """`t`, called `name`: dimension k is dimension `order[k]` of `t`.

    extents: by dimension of `t`, the extents of those that are padded. sizes: by dimension, where others have zeros too.
    """
    out = Tensor(name, tuple(extents.get(d, t.shape[d]) for d in order), t.dtype)

    def body(*i: Expr) -> Expr:
        index = tuple(i[order.index(d)] for d in range(len(order)))
        ends = {d: idx(t.shape[d]) for d in extents} | dict(sizes)
        inside: Expr | None = None
        for d, end in ends.items():
            here = Binary("lt", index[d], end)
            inside = here if inside is None else Binary("and", inside, here)
        x = Load(t, index)
        return x if inside is None else Select(inside, x, const(0.0, t.dtype))

    return compute(out, body)


def below(e: Expr, axis: Axis, extent: int) -> Select:
    """`e` where `axis` is less than `extent`, and zero elsewhere."""
    return Select(Binary("lt", axis, idx(extent)), e, const(0.0, e.dtype))
