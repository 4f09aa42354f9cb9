"""Sorting by rank: an element's place is the number of elements that stand before it.

Quadratic in the extent that is sorted and wholly parallel, without a data-dependent loop.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontend.builder import Builder, load, raised, wrap
from monotile.frontend.lower import scalar as s
from monotile.frontend.lower.views import along
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, const, idx

Lowering = Callable[..., Any]


def _after(a: Expr, b: Expr) -> Expr:
    """a > b, where NaN is greater than every number."""
    if not a.dtype.is_float:
        return s.gt(a, b)
    return s.either(s.gt(a, b), s.both(s.isnan(a), s.negation(s.isnan(b))))


def _order(b: Builder, x: Tensor, d: int, descending: bool, shape: Sequence[int]) -> Tensor:
    """[..., k, ...]: the position along `d` of the element that is number k; equals keep their order."""
    n = x.shape[d]

    def before(*axes: Expr) -> Expr:
        *i, r = axes
        own, other = raised(x, i), raised(x, along(i, d, lambda _: r))
        ahead = _after(other, own) if descending else _after(own, other)
        behind = _after(own, other) if descending else _after(other, own)
        tie = s.both(s.lt(r, i[d]), s.negation(behind))
        return cast(s.either(ahead, tie), DType.I64)

    rank = b.emit(x.shape, DType.I64, before, reduce=(n,), combiner="sum", part="rank")

    def found(*axes: Expr) -> Expr:
        *i, r = axes
        return s.select(s.eq(load(rank, along(i, d, lambda _: r)), i[d]), r, idx(0))

    return b.emit(shape, DType.I64, found, reduce=(n,), combiner="sum", part="order")


def _sorted(b: Builder, x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    if not x.shape:
        return x, b.result(lambda: const(0, DType.I64), index=1)
    d = wrap(dim, len(x.shape))
    order = _order(b, x, d, descending, b.shape)
    values = b.result(lambda *i: load(x, along(i, d, lambda _: load(order, i))), index=0)
    return values, order


def sort(b: Builder, x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return _sorted(b, x, dim, descending)


def sort_stable(
    b: Builder,
    x: Tensor,
    *,
    stable: bool | None = None,
    dim: int = -1,
    descending: bool = False,
) -> tuple[Tensor, Tensor]:
    return _sorted(b, x, dim, descending)


def topk(
    b: Builder, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    return _sorted(b, x, dim, largest)


def argsort(b: Builder, x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    if not x.shape:
        return b.result(lambda: const(0, DType.I64))
    return _order(b, x, wrap(dim, len(x.shape)), descending, b.shape)


def argsort_stable(
    b: Builder, x: Tensor, *, stable: bool, dim: int = -1, descending: bool = False
) -> Tensor:
    return argsort(b, x, dim, descending)


LOWERINGS: Mapping[str, Lowering] = {
    "aten.sort.default": sort,
    "aten.sort.stable": sort_stable,
    "aten.topk.default": topk,
    "aten.argsort.default": argsort,
    "aten.argsort.stable": argsort_stable,
}
