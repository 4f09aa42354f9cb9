"""Distances between vectors, and their norms."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from monotile.frontends.builder import Builder, broadcast, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, const

Lowering = Callable[..., Any]


def _term(p: float, difference: Expr) -> Expr:
    """The term of a p-norm's sum; for an infinite `p` of its maximum."""
    size = s.call("abs", difference)
    if p == 0:
        one, zero = const(1, size.dtype), const(0, size.dtype)
        return s.select(s.ne(size, 0), one, zero)
    if p in (1, math.inf):
        return size
    return s.mul(difference, difference) if p == 2 else s.op("pow", size, p)


def _root(p: float, total: Expr) -> Expr:
    if p in (0, 1, math.inf):
        return total
    return s.call("sqrt", total) if p == 2 else s.op("pow", total, 1 / p)


def cdist(b: Builder, x: Tensor, y: Tensor, p: float = 2.0, *_: object) -> Tensor:
    """The p-norm of x[..., i, :] - y[..., j, :], leading dimensions broadcast."""

    def body(*axes: Expr) -> Expr:
        *lead, i, j, r = axes
        left = raised(x, [*broadcast(x.shape[:-2], lead), i, r])
        right = raised(y, [*broadcast(y.shape[:-2], lead), j, r])
        return _term(p, s.sub(left, right))

    combiner = "max" if math.isinf(p) else "sum"
    wide = b.dtype.compute
    if not x.shape[-1]:
        return b.result(lambda *_: const(0, b.dtype))
    total = b.emit(b.shape, wide, body, reduce=(x.shape[-1],), combiner=combiner, part="total")
    return b.result(lambda *i: _root(p, load(total, i)))


def pdist(b: Builder, x: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm of x[i] - x[j] for each pair i < j, in order."""
    if not x.shape[-1]:
        return b.result(lambda *_: const(0, b.dtype))
    first, second = (b.constant(k) for k in np.triu_indices(x.shape[0], 1))

    def body(k: Expr, r: Expr) -> Expr:
        left, right = (raised(x, [load(pair, [k]), r]) for pair in (first, second))
        return _term(p, s.sub(left, right))

    combiner = "max" if math.isinf(p) else "sum"
    extent = (x.shape[-1],)
    total = b.emit(b.shape, b.dtype.compute, body, reduce=extent, combiner=combiner, part="total")
    return b.result(lambda *i: _root(p, load(total, i)))


def embedding_renorm(
    b: Builder, weight: Tensor, indices: Tensor, max_norm: float, norm_type: float
) -> Tensor:
    """`weight` with the rows that `indices` names scaled down to the norm `max_norm`."""
    rows, features = weight.shape
    wide = weight.dtype.compute
    unnamed = b.emit((rows,), DType.BOOL, lambda _: const(False, DType.BOOL), part="unnamed")
    named = b.scatter(
        unnamed,
        indices.shape,
        lambda *i: ([cast(load(indices, i), DType.I64)], const(True, DType.BOOL)),
        part="named",
    )
    combiner = "max" if math.isinf(norm_type) else "sum"
    total = b.emit(
        (rows,),
        wide,
        lambda n, r: _term(norm_type, raised(weight, [n, r])),
        reduce=(features,),
        combiner=combiner,
        part="total",
    )

    def body(n: Expr, k: Expr) -> Expr:
        norm = _root(norm_type, load(total, [n]))
        scale = s.div(max_norm, s.add(norm, 1e-7))
        long = s.both(load(named, [n]), s.gt(norm, max_norm))
        v = raised(weight, [n, k])
        return s.select(long, s.mul(v, scale), v)

    return b.result(body)


LOWERINGS: Mapping[str, Lowering] = {
    "aten.cdist": cdist,
    "aten._cdist_forward": cdist,
    "aten._pdist_forward": pdist,
    "aten.embedding_renorm": embedding_renorm,
}
