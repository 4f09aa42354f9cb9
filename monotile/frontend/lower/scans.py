"""Scans: each element reduces over those up to it. Quadratic in the extent, and wholly parallel."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontend.builder import Builder, load, raised, wrap
from monotile.frontend.lower import scalar as s
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, const, idx

Lowering = Callable[..., Any]


def _scan(combiner: str, identity: float) -> Lowering:
    def lower(b: Builder, x: Tensor, dim: int, **_: object) -> Tensor:
        wide = b.dtype.compute
        if not x.shape:
            return b.result(lambda: load(x, ()))
        d = wrap(dim, len(x.shape))

        def body(*axes: Expr) -> Expr:
            *i, r = axes
            value = cast(load(x, [*i[:d], r, *i[d + 1 :]]), wide)
            return s.select(s.le(r, i[d]), value, const(identity, wide))

        return b.result(body, reduce=(x.shape[d],), combiner=combiner)

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

    def power(*axes: Expr) -> Expr:
        *i, r = axes
        shifted = s.exp(s.sub(value(i, r), load(top, i)))
        return s.select(s.le(r, i[d]), shifted, const(0, wide))

    added = b.emit(x.shape, wide, power, reduce=(n,), combiner="sum", part="sum")
    return b.result(lambda *i: s.add(s.call("log", load(added, i)), load(top, i)))


def _extreme_scan(combiner: str) -> Lowering:
    """cummax, cummin: values and the last index that holds each."""

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


LOWERINGS: Mapping[str, Lowering] = {
    "aten.cumsum.default": _scan("sum", 0),
    "aten.cumprod.default": _scan("prod", 1),
    "aten.logcumsumexp.default": logcumsumexp,
    "aten.cummax.default": _extreme_scan("max"),
    "aten.cummin.default": _extreme_scan("min"),
}
