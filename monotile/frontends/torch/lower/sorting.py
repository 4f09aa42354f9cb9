"""Sorting by rank: the position of an element is the number of elements before it.

Each is compared with each, or, of many, as `long_sort.py` does. Many of few values are counted (`counted_sort.py`), the first few of many selected
(`selection.py`), and very many sorted digit by digit (`radix_sort.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import Builder, Type, load, raised, wrap
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.counted_sort import KINDS, counted_ranks
from monotile.frontends.torch.lower.long_sort import LONG, Before, long_ranks, order_of_ranks
from monotile.frontends.torch.lower.radix_sort import VAST, radix_order
from monotile.frontends.torch.lower.reduce import Over, reduce_dims, without
from monotile.frontends.torch.lower.reshape import reshape_index
from monotile.frontends.torch.lower.selection import MANY, SHARE, first_places
from monotile.frontends.torch.lower.sort_keys import keyed, value_of
from monotile.frontends.torch.lower.views import along
from monotile.frontends.torch.sizes.element_values import values_of
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, const, idx

FEW = 64  # elements of the result that are searched for one by one
Lowering = Callable[..., Any]
Number = Callable[
    [Builder, Tensor, int, Tensor], Tensor
]  # of x, a dimension and the order along it


def order_of(b: Builder, x: Tensor, d: int, descending: bool, shape: Sequence[int]) -> Tensor:
    """[..., k, ...]: the position along `d` of the k-th smallest element; equal elements keep their order."""
    found = _order(b, x, d, descending, shape)
    if len(x.shape) == 1 and x.shape[0] == shape[0]:
        b.permutations.add(found.name)
    return found


def _order(b: Builder, x: Tensor, d: int, descending: bool, shape: Sequence[int]) -> Tensor:
    n, k = x.shape[d], shape[d]
    if x.name in b.permutations and not descending:  # each element is its rank
        return _first(b, order_of_ranks(b, x, d), shape)
    values = None if x.dtype.is_float else values_of(x, b.statements)
    if int(n) >= LONG and values is not None and values.hi - values.lo < KINDS:
        return _of_ranks(b, counted_ranks(b, x, d, values, descending), d, shape)
    keys = keyed(b, x, d, values, descending)
    if keys is not None and int(n) >= MANY and 0 < int(k) <= int(n) // SHARE:
        places = first_places(b, keys, d, k)
        few = b.emit(shape, DType.I64, lambda *i: load(keys, along(i, d, lambda _: load(places, i))), part="few")  # fmt: skip
        order = _of_ranks(b, _ranks(b, few, d, _less, distinct=True), d, shape)
        return b.emit(shape, DType.I64, lambda *i: load(places, along(i, d, lambda _: load(order, i))), part="in_order")  # fmt: skip
    bits = 32 if keys is not None else 64
    if int(n) >= VAST * bits // 32:
        return _first(b, radix_order(b, x, d, descending, bits), shape)
    if keys is not None:
        return _of_ranks(b, _ranks(b, keys, d, _less, distinct=True), d, shape)
    wide = b.emit(x.shape, DType.I64, lambda *i: value_of(x, i, descending), part="values")
    return _of_ranks(b, _ranks(b, wide, d, _less_or_earlier, distinct=False), d, shape)


def _less(own: Expr, other: Expr, _: Expr) -> Expr:
    return s.lt(other, own)


def _less_or_earlier(own: Expr, other: Expr, earlier: Expr) -> Expr:
    return s.either(s.lt(other, own), s.both(s.eq(other, own), earlier))


def _of_ranks(b: Builder, rank: Tensor, d: int, shape: Sequence[int]) -> Tensor:
    """The position of the element of each rank that `shape` has along `d`."""
    n = rank.shape[d]
    if int(n) >= LONG and int(shape[d]) > FEW:
        return _first(b, order_of_ranks(b, rank, d), shape)

    def found(*axes: Expr) -> Expr:
        *i, r = axes
        return s.select(s.eq(load(rank, along(i, d, lambda _: r)), i[d]), r, idx(0))

    # one of them alone is found: the greatest, which is a position whatever is found
    return b.emit(shape, DType.I64, found, reduce=(n,), combiner="max", part="order")


def _first(b: Builder, order: Tensor, shape: Sequence[int]) -> Tensor:
    return b.emit(shape, DType.I64, lambda *i: load(order, i), part="order")


def _ranks(b: Builder, x: Tensor, d: int, before: Before, *, distinct: bool) -> Tensor:
    """How many elements along `d` come before each."""
    if int(x.shape[d]) >= LONG:
        return long_ranks(b, x, d, before, distinct=distinct)

    def compared(*axes: Expr) -> Expr:
        *i, r = axes
        other = raised(x, along(i, d, lambda _: r))
        return cast(before(raised(x, i), other, s.lt(r, i[d])), DType.I64)

    return b.emit(x.shape, DType.I64, compared, reduce=(x.shape[d],), combiner="sum", part="rank")


def _sorted(b: Builder, x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    if not x.shape:
        return x, b.result(lambda: const(0, DType.I64), index=1)
    d = wrap(dim, len(x.shape))
    order = order_of(b, x, d, descending, b.shape)
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
    return order_of(b, x, wrap(dim, len(x.shape)), descending, b.shape)


def argsort_stable(
    b: Builder, x: Tensor, *, stable: bool, dim: int = -1, descending: bool = False
) -> Tensor:
    return argsort(b, x, dim, descending)


def _chosen(
    b: Builder, x: Tensor, dim: int, keepdim: bool, number: Number
) -> tuple[Tensor, Tensor]:
    """Value and position of the element of each row whose rank in ascending order is given by `number`."""
    if not x.shape:
        return x, b.result(lambda: const(0, DType.I64), index=1)
    d = wrap(dim, len(x.shape))
    order = order_of(b, x, d, False, x.shape)
    which = number(b, x, d, order)

    def row(i: Sequence[Expr]) -> list[Expr]:
        return without((d,), i) if keepdim else list(i)

    def position(i: Sequence[Expr]) -> Expr:
        r = row(i)
        return load(order, [*r[:d], load(which, r), *r[d:]])

    def value(*i: Expr) -> Expr:
        r = row(i)
        return load(x, [*r[:d], position(i), *r[d:]])

    return b.result(value, index=0), b.result(lambda *i: position(i), index=1)


def _nans(b: Builder, x: Tensor, d: int) -> Tensor:
    def test(i: Sequence[Expr]) -> Expr:
        v = raised(x, i)
        return cast(s.isnan(v), DType.I64) if x.dtype.is_float else idx(0)

    return reduce_dims(b, x, Over((d,)), "sum", test, DType.I64, part="nans")


def _median(ignoring_nan: bool) -> Lowering:
    """The lower of the two middle elements; NaN, which is sorted to the end, if there is one and it counts."""

    def number(b: Builder, x: Tensor, d: int, _: Tensor) -> Tensor:
        nans, n = _nans(b, x, d), x.shape[d]

        def body(*i: Expr) -> Expr:
            count = load(nans, i)
            if ignoring_nan:
                return s.maximum(s.floordiv(s.sub(n - 1, count), 2), 0)
            return s.select(s.gt(count, 0), idx(n - 1), idx((n - 1) // 2))

        return b.emit(nans.shape, DType.I64, body, part="number")

    def lower(b: Builder, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        return _chosen(b, x, dim, keepdim, number)

    return lower


def _median_of_all(ignoring_nan: bool) -> Lowering:
    of_rows = _median(ignoring_nan)

    def lower(b: Builder, x: Tensor) -> Tensor:
        flat = b.emit(
            (x.size,),
            x.dtype,
            lambda i: load(x, reshape_index(x.shape, (x.size,), (i,))),
            part="flat",
        )
        inner = b.nested()
        inner.statements = b.statements
        inner.results = (b.results[0], Type((), DType.I64))
        return of_rows(inner, flat, 0)[0]

    return lower


def kthvalue(
    b: Builder, x: Tensor, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    def number(b: Builder, x: Tensor, d: int, _: Tensor) -> Tensor:
        shape = [n for e, n in enumerate(x.shape) if e != d]
        return b.emit(shape, DType.I64, lambda *i: idx(k - 1), part="number")

    return _chosen(b, x, dim, keepdim, number)


def mode(b: Builder, x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest of the most frequent values, and the last position of it."""

    def number(b: Builder, x: Tensor, d: int, order: Tensor) -> Tensor:
        n = x.shape[d]

        def equal(*axes: Expr) -> Expr:
            *i, r = axes
            return cast(s.eq(raised(x, i), raised(x, along(i, d, lambda _: r))), DType.I64)

        counts = b.emit(x.shape, DType.I64, equal, reduce=(n,), combiner="sum", part="counts")

        def count(i: Sequence[Expr], r: Expr) -> Expr:
            """The element of rank `r`."""
            at = [*i[:d], r, *i[d:]]
            return load(counts, [*i[:d], load(order, at), *i[d:]])

        shape = [n for e, n in enumerate(x.shape) if e != d]
        first = b.emit(
            shape,
            DType.I64,
            lambda *axes: count(axes[:-1], axes[-1]),
            reduce=(n,),
            combiner="argmax",
            part="first",
        )

        def last(*i: Expr) -> Expr:
            more = s.sub(s.maximum(count(i, load(first, i)), 1), 1)  # NaN equals nothing
            return s.add(load(first, i), more)

        return b.emit(shape, DType.I64, last, part="number")

    return _chosen(b, x, dim, keepdim, number)


LOWERINGS: Mapping[str, Lowering] = {
    "aten.median.dim": _median(ignoring_nan=False),
    "aten.nanmedian.dim": _median(ignoring_nan=True),
    "aten.median.default": _median_of_all(ignoring_nan=False),
    "aten.nanmedian.default": _median_of_all(ignoring_nan=True),
    "aten.kthvalue.default": kthvalue,
    "aten.mode.default": mode,
    "aten.sort.default": sort,
    "aten.sort.stable": sort_stable,
    "aten.topk.default": topk,
    "aten.argsort.default": argsort,
    "aten.argsort.stable": argsort_stable,
}
