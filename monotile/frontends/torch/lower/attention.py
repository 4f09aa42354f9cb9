"""Scaled dot-product attention."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.errors import CaptureError
from monotile.frontends.builder import Builder, Unsupported, broadcast, element, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.reduce import Over, masked_beyond_size, reduce_dims, without
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Symbolic, Tensor, cast, const

Lowering = Callable[..., Any]

# Smaller than every score but -inf: a row of -inf then has exp(-inf - LOWEST) = 0 everywhere.
_LOWEST = -3.0e38


def _head(t: Tensor, batch: Sequence[int], i: Sequence[Expr]) -> list[Expr]:
    """The leading index into keys or values, which are broadcast, and shared by a group of query heads."""
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

    Scores are float32; probabilities have the type of `value`. A row whose keys are all masked gives zeros, as in PyTorch.
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
    shares = _shares(b, value.dtype, *_safe_softmax_parts(b, (len(scores.shape) - 1,), scores)[1:])

    def mixture(*axes: Expr) -> Expr:
        *i, m, n, r = axes
        return s.mul(raised(shares, [*i, m, r]), raised(value, [*_head(value, batch, i), r, n]))

    return b.result(mixture, reduce=(keys,), combiner="sum")


def _products(b: Builder, query: Tensor, key: Tensor) -> Tensor:
    """The scores query · keyᵀ, in the type of their sums."""
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


def _shares(b: Builder, dtype: DType, powers: Tensor, added: Tensor) -> Tensor:
    def probability(*i: Expr) -> Expr:
        # A sum is at least exp(0) = 1 unless the whole row is -inf.
        return s.div(load(powers, i), s.maximum(load(added, i[:-1]), 1))

    return b.emit(powers.shape, dtype, probability, part="probabilities")


def _safe_softmax_parts(
    b: Builder, dims: Sequence[int], x: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Maximum, exponentials and their sum, as in `softmax_parts`, with zeros for a row of -inf."""
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
    return top, powers, added


def safe_softmax(b: Builder, x: Tensor, dim: int, *_: object, **__: object) -> Tensor:
    """softmax with zeros for a row that is all -inf (`aten._safe_softmax`)."""
    dims = (dim % len(x.shape),)
    if x.dtype is not b.dtype.compute:
        x = b.emit(x.shape, b.dtype.compute, lambda *i, t=x: load(t, i), part="cast")
    x = masked_beyond_size(b, x, dims, -math.inf)
    powers, added = _safe_softmax_parts(b, dims, x)[1:]
    return b.result(lambda *i: s.div(load(powers, i), s.maximum(load(added, without(dims, i)), 1)))


def packed_attention(
    b: Builder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: Sequence[int] | None = None,
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention over packed sequences, [tokens, heads, features] each (`torch.nn.attention.varlen`): sequence s has the tokens
    from cu_seq[s] on and before cu_seq[s + 1]. Also the logarithms of the sums of exponentials, [heads, tokens], and PyTorch's
    state of random numbers, zeros. Tokens that are in no sequence get zeros.

    A query sees keys of its sequence from `window_size[0]` before its position to `window_size[1]` behind it (-1: all), counted from the ends.
    """
    if block_table is not None or cu_seq_k is None:
        raise Unsupported("keys in pages")
    heads, shared = query.shape[1], key.shape[1]
    # enable_gqa is checked by PyTorch's own function; versions without it take it for granted
    if heads % shared:
        raise Unsupported(f"{heads} heads of queries and {shared} of keys")
    left, right = window_size or (-1, -1)
    window = left, 0 if is_causal else right
    first, last = _seen(b, query.shape[0], cu_seq_q, cu_seq_k, seqused_k, window)
    group, wide = heads // shared, query.dtype.compute
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale

    def product(h: Expr, m: Expr, n: Expr, r: Expr) -> Expr:
        return s.mul(raised(query, [m, h, r]), raised(key, [n, s.floordiv(h, group), r]))

    shape = heads, query.shape[0], key.shape[0]
    products = b.emit(shape, wide, product, reduce=(query.shape[-1],), combiner="sum", part="products")  # fmt: skip

    def score(*i: Expr) -> Expr:
        _, m, n = i
        seen = s.both(s.ge(n, load(first, [m])), s.lt(n, load(last, [m])))
        return s.select(seen, s.mul(load(products, i), factor), -math.inf)

    scores = masked_beyond_size(b, b.emit(shape, wide, score, part="scores"), (2,), -math.inf)
    top, powers, added = _safe_softmax_parts(b, (2,), scores)
    shares = _shares(b, value.dtype, powers, added)

    def mixture(m: Expr, h: Expr, d: Expr, n: Expr) -> Expr:
        return s.mul(raised(shares, [h, m, n]), raised(value, [n, s.floordiv(h, group), d]))

    def logarithm(*i: Expr) -> Expr:
        return s.add(load(top, i), s.call("log", load(added, i)))

    out = b.result(mixture, reduce=(key.shape[0],), combiner="sum")
    sums, zeros = b.result(logarithm, index=1), b.result(lambda _: const(0, DType.I64), index=2)
    return out, sums, zeros


def _seen(
    b: Builder,
    tokens: int,
    queries: Tensor,
    keys: Tensor,
    used: Tensor | None,
    window: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """For each token, the first key that it attends to, and the one after the last."""
    (left, right), count = window, queries.shape[0] - 1

    def ended(t: Expr, k: Expr) -> Expr:
        return cast(s.le(cast(load(queries, [s.add(k, 1)]), DType.I64), t), DType.I64)

    sequence = b.emit((tokens,), DType.I64, ended, reduce=(count,), combiner="sum", part="sequence")

    def ends(t: Expr) -> tuple[Expr, Expr]:
        own = load(sequence, [t])
        inside, own = s.lt(own, count), s.minimum(own, count - 1)
        begin, end = (cast(load(keys, [s.add(own, k)]), DType.I64) for k in (0, 1))
        if used is not None:
            end = s.add(begin, cast(load(used, [own]), DType.I64))
        behind = s.sub(cast(load(queries, [s.add(own, 1)]), DType.I64), t)
        low, high = begin, end
        if left >= 0:
            low = s.maximum(begin, s.sub(s.sub(end, behind), left))
        if right >= 0:
            high = s.minimum(end, s.add(s.sub(end, behind), right + 1))
        return low, s.select(inside, high, 0)

    first = b.emit((tokens,), DType.I64, lambda t: ends(t)[0], part="first")
    return first, b.emit((tokens,), DType.I64, lambda t: ends(t)[1], part="last")


LOWERINGS: Mapping[str, Lowering] = {
    "torch_attn._varlen_attn": packed_attention,
    "aten.scaled_dot_product_attention": attention,
    "aten._safe_softmax": safe_softmax,
}
