"""Scans: each element reduces over the elements up to it, in parallel."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from monotile.frontends.builder import Builder, load, raised, wrap
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.views import along, joined
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, const, idx

Lowering = Callable[..., Any]


# Longer scans go in two levels: within blocks, and over the blocks' totals. Of very long ones the totals are scanned in two levels again.
_DIRECT = 64
_VERY_LONG = 1 << 14


def scanned(
    b: Builder, x: Tensor, d: int, combiner: str, identity: float, dtype: DType, part: str = ""
) -> Tensor:
    """Each element combined with those before it along `d`, in the type `dtype.compute`."""
    wide = dtype.compute
    n = x.shape[d]
    most = max(int(n), 1)
    size = min(most, _DIRECT) if most <= _DIRECT or most > _VERY_LONG else math.isqrt(most - 1) + 1
    blocks = -(-most // size)
    outside = const(identity, wide)

    def value(i: Sequence[Expr], k: Expr) -> Expr:
        return cast(load(x, along(i, d, lambda _: k)), wide)

    def within(*axes: Expr) -> Expr:
        *i, r = axes
        if blocks == 1:
            return s.select(s.le(r, i[d]), value(i, r), outside)
        first = s.mul(s.floordiv(i[d], size), size)
        return s.select(s.le(r, s.mod(i[d], size)), value(i, s.add(first, r)), outside)

    if blocks == 1:
        return b.emit(x.shape, dtype, within, reduce=(size,), combiner=combiner, part=part)
    own = b.emit(x.shape, wide, within, reduce=(size,), combiner=combiner, part="within")

    def total(*axes: Expr) -> Expr:
        *i, r = axes
        k = s.add(s.mul(i[d], size), r)
        return s.select(s.lt(k, n), value(i, k), outside)

    shape = (*x.shape[:d], blocks, *x.shape[d + 1 :])
    totals = b.emit(shape, wide, total, reduce=(size,), combiner=combiner, part="totals")

    ahead = ahead_of_each(b, totals, d, combiner, identity, many=most > _VERY_LONG)
    joined = {"sum": s.add, "prod": s.mul}[combiner]

    def both(*i: Expr) -> Expr:
        return joined(load(ahead, along(i, d, lambda k: s.floordiv(k, size))), load(own, i))

    return b.emit(x.shape, dtype, both, part=part)


def ahead_of_each(
    b: Builder, totals: Tensor, d: int, combiner: str, identity: float, *, many: bool
) -> Tensor:
    """All totals before each, combined."""
    shape, wide = totals.shape, totals.dtype
    outside = const(identity, wide)
    if many:
        up_to = scanned(b, totals, d, combiner, identity, wide, part="up_to")

        def earlier(*i: Expr) -> Expr:
            one_before = load(up_to, along(i, d, lambda k: s.maximum(s.sub(k, 1), 0)))
            return s.select(s.gt(i[d], 0), one_before, outside)

        return b.emit(shape, wide, earlier, part="before")

    def before(*axes: Expr) -> Expr:
        *i, r = axes
        return s.select(s.lt(r, i[d]), load(totals, along(i, d, lambda _: r)), outside)

    return b.emit(shape, wide, before, reduce=(shape[d],), combiner=combiner, part="before")


def _scan(combiner: str, identity: float) -> Lowering:
    def lower(b: Builder, x: Tensor, dim: int, **_: object) -> Tensor:
        if not x.shape:
            return b.result(lambda: load(x, ()))
        return scanned(b, x, wrap(dim, len(x.shape)), combiner, identity, b.dtype)

    return lower


def logcumsumexp(b: Builder, x: Tensor, dim: int) -> Tensor:
    if not x.shape:
        return x
    wide = b.dtype.compute
    d = wrap(dim, len(x.shape))
    n = x.shape[d]

    def value(i: Sequence[Expr], k: Expr) -> Expr:
        return raised(x, [*i[:d], k, *i[d + 1 :]])

    def up_to(*axes: Expr) -> Expr:
        *i, r = axes
        return value(i, s.minimum(r, i[d]))

    top = b.emit(x.shape, wide, up_to, reduce=(n,), combiner="max", part="max")

    def shift(i: Sequence[Expr]) -> Expr:
        # Infinities would be inf - inf.
        m = load(top, i)
        return s.select(s.call("isinf", m), const(0, wide), m)

    def power(*axes: Expr) -> Expr:
        *i, r = axes
        shifted = s.exp(s.sub(value(i, r), shift(i)))
        return s.select(s.le(r, i[d]), shifted, const(0, wide))

    added = b.emit(x.shape, wide, power, reduce=(n,), combiner="sum", part="sum")
    return b.result(lambda *i: s.add(s.call("log", load(added, i)), shift(i)))


def _extreme_scan(combiner: str) -> Lowering:
    """cummax, cummin: the values, and the last index of each."""

    def lower(b: Builder, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        if not x.shape:
            return x, b.result(lambda: idx(0), index=1)
        d = wrap(dim, len(x.shape))
        n = x.shape[d]

        def at(i: Sequence[Expr], k: Expr) -> Expr:
            return raised(x, [*i[:d], k, *i[d + 1 :]])

        # Beyond the position, repeat the element at it: that never changes an extreme.
        def value(*axes: Expr) -> Expr:
            *i, r = axes
            return at(i, s.minimum(r, i[d]))

        values = b.result(value, reduce=(n,), combiner=combiner, index=0)

        def position(*axes: Expr) -> Expr:
            *i, r = axes
            # Runs backwards, so that the first of equals is the last position.
            return at(i, s.maximum(s.sub(i[d], r), 0))

        back = b.emit(
            x.shape, DType.I64, position, reduce=(n,), combiner=f"arg{combiner}", part="back"
        )
        return values, b.result(lambda *i: s.sub(i[d], load(back, i)), index=1)

    return lower


def diff(
    b: Builder,
    x: Tensor,
    n: int = 1,
    dim: int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """The n-th differences of neighbours along `dim`, of `x` with further tensors at its ends."""
    d = wrap(dim, len(x.shape))
    parts: list[tuple[int, Tensor]] = []
    extent = 0
    for t in (prepend, x, append):
        if t is not None and t.shape[d]:
            parts.append((extent, t))
            extent += t.shape[d]

    def whole(i: Sequence[Expr]) -> Expr:
        return cast(joined(i, d, parts), b.dtype.compute)

    element: Callable[[Sequence[Expr]], Expr] = whole
    apart = s.ne if b.dtype is DType.BOOL else s.sub
    current = x
    for k in range(n):
        shape = (*x.shape[:d], extent - k - 1, *x.shape[d + 1 :])
        of = element

        def body(*i: Expr, of: Callable[[Sequence[Expr]], Expr] = of) -> Expr:
            return apart(of(along(i, d, lambda e: s.add(e, 1))), of(i))

        current = b.emit(shape, b.dtype, body, part="" if k == n - 1 else f"order{k + 1}")
        element = partial(raised, current)
    return current


LOWERINGS: Mapping[str, Lowering] = {
    "aten.diff": diff,
    "aten.cumsum.default": _scan("sum", 0),
    "aten.cumprod.default": _scan("prod", 1),
    "aten.logcumsumexp.default": logcumsumexp,
    "aten.cummax.default": _extreme_scan("max"),
    "aten.cummin.default": _extreme_scan("min"),
}
