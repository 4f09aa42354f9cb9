"""Softmax and its logarithm: maximum, exponentials, their sum and the quotient, each a Compute."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import Builder, load, raised, wrap, wrap_all
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.reduce import (
    Dims,
    Over,
    kept,
    masked_beyond_size,
    reduce_dims,
    without,
)
from monotile.ir.expr import Expr, Tensor, const

Lowering = Callable[..., Any]


def softmax_parts(b: Builder, dims: Sequence[int], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """max(x), exp(x - max(x)) and its sum over `dims`, without these, in at least float32."""
    wide = x.dtype.compute
    x = masked_beyond_size(b, x, dims, -math.inf)
    top = reduce_dims(b, x, Over(dims), "max", lambda i: raised(x, i), wide, part="max")
    powers = b.emit(
        x.shape,
        wide,
        lambda *i: s.exp(s.sub(raised(x, i), load(top, without(dims, i)))),
        part="exp",
    )
    added = reduce_dims(b, powers, Over(dims), "sum", lambda i: load(powers, i), wide, part="sum")
    return top, powers, added


def _widened(b: Builder, x: Tensor) -> Tensor:
    """`x` in the type of the result if that is wider (softmax(dtype=...)) or `x` is no float."""
    if x.dtype.is_float and x.dtype.compute is b.dtype.compute:
        return x
    return b.emit(x.shape, b.dtype, lambda *i: load(x, i), part="cast")


def softmax(b: Builder, x: Tensor, dim: int, *_: object, **__: object) -> Tensor:
    x = _widened(b, x)
    dims = (wrap(dim, len(x.shape)),) if x.shape else ()
    powers, added = softmax_parts(b, dims, x)[1:]
    return b.result(lambda *i: s.div(load(powers, i), load(added, without(dims, i))))


def log_softmax(b: Builder, x: Tensor, dim: int, *_: object, **__: object) -> Tensor:
    x = _widened(b, x)
    dims = (wrap(dim, len(x.shape)),) if x.shape else ()
    parts = softmax_parts(b, dims, x)
    top, added = parts[0], parts[2]

    def body(*i: Expr) -> Expr:
        row = without(dims, i)
        shifted = s.sub(raised(x, i), load(top, row))
        return s.sub(shifted, s.call("log", load(added, row)))

    return b.result(body)


def logsumexp(b: Builder, x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    x = _widened(b, x)
    wide = x.dtype.compute
    dims = wrap_all(dim, len(x.shape))
    x = masked_beyond_size(b, x, dims, -math.inf)
    top = reduce_dims(b, x, Over(dims), "max", lambda i: raised(x, i), wide, part="max")

    def shift(row: Sequence[Expr]) -> Expr:
        # A row of infinities would be inf - inf.
        m = load(top, row)
        return s.select(s.call("isinf", m), const(0, wide), m)

    added = reduce_dims(
        b,
        x,
        Over(dims),
        "sum",
        lambda i: s.exp(s.sub(raised(x, i), shift(without(dims, i)))),
        wide,
        part="sum",
    )

    def body(*i: Expr) -> Expr:
        row = kept(dims, i, keepdim)
        return s.add(s.call("log", load(added, row)), shift(row))

    return b.result(body)


LOWERINGS: Mapping[str, Lowering] = {
    "aten.softmax.int": softmax,
    "aten._softmax": softmax,
    "aten.log_softmax.int": log_softmax,
    "aten._log_softmax": log_softmax,
    "aten.logsumexp.default": logsumexp,
}
