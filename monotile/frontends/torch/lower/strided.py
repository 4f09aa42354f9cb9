"""Operators that address a tensor's storage: for a dense tensor that does not share it, its elements in memory order."""

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


def dense_order(shape: Sequence[int], strides: Strides) -> list[int] | None:
    """The dimensions from the slowest in memory to the fastest; None if there are gaps between elements, or elements share memory."""
    order = sorted(range(len(shape)), key=lambda d: (shape[d] != 1, -strides[d]))
    step = 1
    for d in reversed(order):
        if shape[d] != 1 and strides[d] != step:
            return None
        step *= shape[d]
    return order


def in_storage_order(b: Builder, x: Tensor, order: Sequence[int]) -> Tensor:
    """`x` with its dimensions in this order."""
    shape = [x.shape[d] for d in order]
    return b.emit(shape, x.dtype, lambda *i: load(x, [i[order.index(d)] for d in range(len(order))]), part="stored")  # fmt: skip


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
