"""Scaled dot-product attention."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.errors import CaptureError
from monotile.frontends.builder import Builder, broadcast, element, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.reduce import Over, hidden, reduce_dims, without
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Symbolic, Tensor

Lowering = Callable[..., Any]

# Smaller than every score but -inf: a row of -inf then has exp(-inf - LOWEST) = 0 everywhere.
_LOWEST = -3.0e38


def _head(t: Tensor, batch: Sequence[int], i: Sequence[Expr]) -> list[Expr]:
    """The leading index into keys or values: broadcast, and shared by a group of query heads."""
    lead = list(broadcast(t.shape[:-2], i))
    if lead and t.shape[-3] not in (1, batch[-1]):
        lead[-1] = s.floordiv(i[-1], batch[-1] // t.shape[-3])
    return lead


def attention(
    b: Builder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query · keyᵀ * scale, masked) · value; [..., positions, features] each.

    Scores are float32; probabilities have the type of `value`. A row whose keys are all masked
    gives zeros, as in PyTorch.
    """
    if dropout_p:
        raise CaptureError("attention with dropout is training: call model.eval() first")
    batch, keys = b.shape[:-2], key.shape[-2]
    wide = query.dtype.compute
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    products = _products(b, query, key)

    def score(*i: Expr) -> Expr:
        v = s.mul(load(products, i), factor)
        if attn_mask is not None and attn_mask.dtype is DType.BOOL:
            v = s.select(element(attn_mask, i, DType.BOOL), v, -math.inf)
        elif attn_mask is not None:
            v = s.add(v, element(attn_mask, i, wide))
        if isinstance(keys, Symbolic):
            v = s.select(s.lt(i[-1], keys), v, -math.inf)
        return s.select(s.le(i[-1], i[-2]), v, -math.inf) if is_causal else v

    scores = b.emit(products.shape, wide, score, part="scores")
    powers, added = _safe_softmax_parts(b, (len(scores.shape) - 1,), scores)

    def probability(*i: Expr) -> Expr:
        # A sum is at least exp(0) = 1 unless the whole row is -inf.
        return s.div(load(powers, i), s.maximum(load(added, i[:-1]), 1))

    shares = b.emit(scores.shape, value.dtype, probability, part="probabilities")

    def mixture(*axes: Expr) -> Expr:
        *i, m, n, r = axes
        return s.mul(raised(shares, [*i, m, r]), raised(value, [*_head(value, batch, i), r, n]))

    return b.result(mixture, reduce=(keys,), combiner="sum")


def _products(b: Builder, query: Tensor, key: Tensor) -> Tensor:
    """query · keyᵀ in the type that sums are computed in."""
    batch = b.shape[:-2]

    def product(*axes: Expr) -> Expr:
        *i, m, n, r = axes
        left = raised(query, [*broadcast(query.shape[:-2], i), m, r])
        return s.mul(left, raised(key, [*_head(key, batch, i), n, r]))

    return b.emit(
        (*batch, query.shape[-2], key.shape[-2]),
        query.dtype.compute,
        product,
        reduce=(query.shape[-1],),
        combiner="sum",
        part="products",
    )


def _safe_softmax_parts(b: Builder, dims: Sequence[int], x: Tensor) -> tuple[Tensor, Tensor]:
    """Like `softmax_parts`, with zeros for a row of -inf."""
    top = reduce_dims(
        b, x, Over(dims), "max", lambda i: s.maximum(load(x, i), _LOWEST), x.dtype, part="max"
    )
    powers = b.emit(
        x.shape,
        x.dtype,
        lambda *i: s.exp(s.sub(load(x, i), load(top, without(dims, i)))),
        part="exp",
    )
    added = reduce_dims(
        b, powers, Over(dims), "sum", lambda i: load(powers, i), x.dtype, part="sum"
    )
    return powers, added


def safe_softmax(b: Builder, x: Tensor, dim: int, *_: object, **__: object) -> Tensor:
    """softmax with zeros for a row that is -inf throughout (`aten._safe_softmax`)."""
    dims = (dim % len(x.shape),)
    if x.dtype is not b.dtype.compute:
        x = b.emit(x.shape, b.dtype.compute, lambda *i, t=x: load(t, i), part="cast")
    x = hidden(b, x, dims, -math.inf)
    powers, added = _safe_softmax_parts(b, dims, x)
    return b.result(lambda *i: s.div(load(powers, i), s.maximum(load(added, without(dims, i)), 1)))


LOWERINGS: Mapping[str, Lowering] = {
    "aten.scaled_dot_product_attention": attention,
    "aten._safe_softmax": safe_softmax,
}
