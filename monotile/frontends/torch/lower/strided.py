"""Operators that address a tensor's storage: for a contiguous tensor that does not share it, its flat elements."""

from collections.abc import Sequence

from monotile.frontends.builder import Builder, Unsupported, load
from monotile.frontends.torch.lower.reshape import reshape_index
from monotile.ir.expr import Expr, Tensor, add, idx, mul

Strides = Sequence[int]


def _at(x: Tensor, size: Strides, stride: Strides, offset: int, i: Sequence[Expr]) -> list[Expr]:
    """The index into `x` of the element at `i` of a view of the given strides."""
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if not 0 <= offset <= last < x.size:
        raise Unsupported("beyond the elements of the tensor")
    flat: Expr = idx(offset)
    for e, step in zip(i, stride, strict=True):
        flat = add(flat, mul(e, idx(step)))
    return list(reshape_index(x.shape, (x.size,), (flat,)))


def as_strided(
    b: Builder, x: Tensor, size: Strides, stride: Strides, storage_offset: int | None = None
) -> Tensor:
    return b.result(lambda *i: load(x, _at(x, size, stride, storage_offset or 0, i)))


def as_strided_scatter(
    b: Builder,
    x: Tensor,
    src: Tensor,
    size: Strides,
    stride: Strides,
    storage_offset: int | None = None,
) -> Tensor:
    return b.scatter(
        x, size, lambda *i: (_at(x, size, stride, storage_offset or 0, i), load(src, i))
    )


LOWERINGS = {
    "aten.as_strided": as_strided,
    "aten.as_strided_copy": as_strided,
    "aten.as_strided_scatter": as_strided_scatter,
}
