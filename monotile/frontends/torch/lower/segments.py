"""Reductions over segments of a dimension, with data-dependent bounds."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import Builder, Unsupported, identity, load, raised, wrap
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, const, idx

Lowering = Callable[..., Any]
Bounds = Callable[
    [Sequence[Expr]], tuple[Expr, Expr]
]  # by position: a segment's first element, and the one after it

_COMBINERS = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "max", "min": "min"}
_JOIN = {"sum": s.add, "prod": s.mul, "max": s.maximum, "min": s.minimum}


def _by_lengths(b: Builder, lengths: Tensor) -> Bounds:
    def before(*axes: Expr) -> Expr:
        *i, k, r = axes
        return s.select(s.lt(r, k), cast(load(lengths, [*i, r]), DType.I64), idx(0))

    starts = b.emit(
        lengths.shape, DType.I64, before, reduce=lengths.shape[-1:], combiner="sum", part="starts"
    )

    def bounds(at: Sequence[Expr]) -> tuple[Expr, Expr]:
        first = load(starts, at)
        return first, s.add(first, cast(load(lengths, at), DType.I64))

    return bounds


def _by_offsets(offsets: Tensor) -> Bounds:
    def bounds(at: Sequence[Expr]) -> tuple[Expr, Expr]:
        *i, k = at
        ends = load(offsets, at), load(offsets, [*i, s.add(k, 1)])
        return cast(ends[0], DType.I64), cast(ends[1], DType.I64)

    return bounds


def segment_reduce(
    b: Builder,
    x: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """Each segment with `initial`; without it an empty segment gives the identity of the reduction, or NaN for a mean."""
    if indices is not None:
        raise Unsupported("indices")
    if offsets is not None:
        bounds = _by_offsets(offsets)
    elif lengths is not None:
        bounds = _by_lengths(b, lengths)
    else:
        raise Unsupported("neither lengths nor offsets")
    combiner, wide, d = _COMBINERS[reduce], x.dtype.compute, wrap(axis, len(x.shape))
    outside = const(identity(combiner, x.dtype), wide)

    def member(*axes: Expr) -> Expr:
        *i, r = axes
        first, end = bounds(i[: d + 1])
        inside = s.both(s.ge(r, first), s.lt(r, end))
        return s.select(inside, raised(x, [*i[:d], r, *i[d + 1 :]]), outside)

    combined = b.emit(
        b.shape, wide, member, reduce=x.shape[d : d + 1], combiner=combiner, part="combined"
    )

    def value(*i: Expr) -> Expr:
        v = load(combined, i)
        if initial is not None:
            v = _JOIN[combiner](v, const(initial, wide))
        if reduce != "mean":
            return v
        first, end = bounds(i[: d + 1])
        count = s.sub(end, first)
        empty = const(math.nan if initial is None else initial, wide)
        return s.select(s.gt(count, 0), s.div(v, cast(s.maximum(count, 1), wide)), empty)

    return b.result(value)


LOWERINGS: Mapping[str, Lowering] = {"aten.segment_reduce": segment_reduce}
