"""Writes at the positions of a mask."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import Builder, Unsupported, broadcast, element, load
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.reshape import reshape_index
from monotile.frontends.torch.lower.scans import scanned
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, idx

Lowering = Callable[..., Any]


def _position(shape: Sequence[int], at: Sequence[Expr]) -> Expr:
    """The row-major position of an index."""
    flat: Expr = idx(0)
    for e, n in zip(at, shape, strict=True):
        flat = s.add(s.mul(flat, n), e)
    return flat


def counted(b: Builder, mask: Tensor, shape: Sequence[int]) -> Tensor:
    """For each flat position of `mask`, broadcast to `shape`: the number of true elements up to there."""
    size = math.prod(shape)
    flat = b.emit(
        (size,),
        DType.BOOL,
        lambda i: element(mask, reshape_index(shape, (size,), (i,)), DType.BOOL),
        part="mask",
    )
    return scanned(b, flat, 0, "sum", 0, DType.I64, part="count")


def masked_scatter(b: Builder, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """`x` with the elements of `source`, in order, at the true positions of the mask; `source` has at least that many."""
    shape = b.shape
    count = counted(b, mask, shape)

    def body(*i: Expr) -> Expr:
        k = s.sub(load(count, [_position(shape, i)]), 1)
        new = load(source, reshape_index(source.shape, (source.size,), (k,)))
        return s.select(element(mask, i, DType.BOOL), new, element(x, i, x.dtype))

    return b.result(body)


def masked_put(
    b: Builder, x: Tensor, first: int, mask: Tensor, values: Tensor, accumulate: bool
) -> Tensor:
    """x[:, ..., mask] = values, or += values; the mask's first dimension is dimension `first` of `x`.

    The dimensions of the mask are a single one in x[mask], along which there is one value, or one per element.
    """
    rank = len(mask.shape)
    rest = len(x.shape) - first - rank
    selected = len(values.shape) - rest - 1  # which dimension of `values` that is, if they have it
    listed = selected >= 0 and values.shape[selected] != 1
    if listed and first:
        raise Unsupported("a mask after other dimensions, with one value an element")
    count = counted(b, mask, mask.shape) if listed else None
    wide = x.dtype.compute
    plus = s.either if x.dtype is DType.BOOL else s.add

    def body(*i: Expr) -> Expr:
        own = i[first : first + rank]
        k: Expr = idx(0)
        if count is not None:
            k = s.sub(load(count, [_position(mask.shape, own)]), 1)
        at = broadcast(values.shape, [*i[:first], k, *i[first + rank :]])
        old, new = cast(load(x, i), wide), cast(load(values, at), wide)
        return s.select(load(mask, own), plus(old, new) if accumulate else new, old)

    return b.result(body)


LOWERINGS: Mapping[str, Lowering] = {"aten.masked_scatter": masked_scatter}
