"""Operators that write to a part of a tensor, at computed or fixed indices."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import (
    Builder,
    Operand,
    Unsupported,
    broadcast_shape,
    element,
    identity,
    load,
    raised,
    wrap,
)
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.indexing import (
    Indices,
    from_either_end,
    index_at,
    integer_indices,
    source_index,
    where_indexed,
)
from monotile.frontends.torch.lower.masks import masked_put
from monotile.frontends.torch.lower.reshape import reshape_index
from monotile.frontends.torch.lower.views import along, clamp_slice
from monotile.frontends.torch.sizes.size import bounds
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, const, idx

Lowering = Callable[..., Any]


def index_put(
    b: Builder, x: Tensor, indices: Indices, values: Tensor, accumulate: bool = False, *_: object
) -> Tensor:
    """`x` with x[indices] = values, or += values."""
    tensors = [t for t in indices if t is not None]
    if len(tensors) == 1 and tensors[0].dtype is DType.BOOL:
        return masked_put(b, x, indices.index(tensors[0]), tensors[0], values, accumulate)
    held = integer_indices(indices)
    if not held:
        return b.result(lambda *i: element(values, i, x.dtype))
    lead = where_indexed(held)
    own = broadcast_shape(*(t.shape for _, t in held))
    plain = [n for k, n in enumerate(x.shape) if k not in dict(held)]
    extents = [*plain[:lead], *own, *plain[lead:]]

    def point(*i: Expr) -> tuple[list[Expr], Expr]:
        return source_index(x.shape, held, i), element(values, i, x.dtype)

    each = len(held) == 1 and held[0][1].name in b.permutations
    return b.scatter(x, extents, point, "sum" if accumulate else None, distinct=each)


_SCATTER_COMBINERS = {
    "sum": "sum",
    "add": "sum",
    "prod": "prod",
    "multiply": "prod",
    "amax": "max",
    "amin": "min",
}


Point = Callable[..., tuple[list[Expr], Expr]]


def _point(x: Tensor, dim: int, index: Tensor, src: Operand) -> Point:
    """The index into `x` of an element of `src`, and the element."""
    d = wrap(dim, len(x.shape))

    def point(*i: Expr) -> tuple[list[Expr], Expr]:
        at = along(i, d, lambda _: index_at(index, i)) if x.shape else []
        value = load(src, i) if isinstance(src, Tensor) else const(src, x.dtype)
        return at, cast(value, x.dtype)

    return point


def scatter(
    b: Builder, x: Tensor, dim: int, index: Tensor, src: Operand, *, reduce: str | None = None
) -> Tensor:
    """`x` with x[..., index[i], ...] = src[i] along `dim`, or combined with it."""
    if reduce is not None and reduce not in _SCATTER_COMBINERS:
        raise Unsupported(f"reduce={reduce!r}")
    combiner = None if reduce is None else _SCATTER_COMBINERS[reduce]
    return b.scatter(x, index.shape, _point(x, dim, index, src), combiner)


def scatter_add(b: Builder, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return scatter(b, x, dim, index, src, reduce="sum")


def scatter_reduce(
    b: Builder,
    x: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """Without `include_self`, elements that are written to begin at the combiner's identity."""
    if reduce != "mean" and include_self:
        return scatter(b, x, dim, index, src, reduce=reduce)
    combiner, own = _combiner(reduce), _point(x, dim, index, src)
    return _reduced_at(b, x, index.shape, own, combiner, reduce == "mean", include_self)


def _combiner(reduce: str) -> str:
    if reduce != "mean" and reduce not in _SCATTER_COMBINERS:
        raise Unsupported(f"reduce={reduce!r}")
    return "sum" if reduce == "mean" else _SCATTER_COMBINERS[reduce]


def _reduced_at(
    b: Builder,
    x: Tensor,
    extents: Sequence[int],
    point: Point,
    combiner: str,
    average: bool,
    include_self: bool,
) -> Tensor:
    """`x` combined with the elements that `point` gives; counts how many go to each position."""
    zero = b.emit(x.shape, DType.I64, lambda *_: idx(0), part="zero")
    hits = b.scatter(zero, extents, lambda *i: (point(*i)[0], idx(1)), "sum", part="hits")
    base = x
    if not include_self:
        start = const(identity(combiner, x.dtype), x.dtype)
        base = b.emit(
            x.shape,
            x.dtype,
            lambda *i: s.select(s.gt(load(hits, i), 0), start, load(x, i)),
            part="base",
        )
    if not average:
        return b.scatter(base, extents, point, combiner)
    added = b.scatter(base, extents, point, "sum", part="sum")
    wide = x.dtype.compute
    divided = s.div if x.dtype.is_float else s.floordiv

    def mean(*i: Expr) -> Expr:
        count = s.maximum(s.add(load(hits, i), int(include_self)), 1)
        return divided(raised(added, i), cast(count, wide))

    return b.result(mean)


def _index_write(
    b: Builder,
    x: Tensor,
    dim: int,
    index: Tensor,
    value: Operand,
    scale: float,
    combiner: str | None,
) -> Tensor:
    """x[..., index[k], ...] = scale * value[..., k, ...] along `dim`, or combined with it."""
    wide = x.dtype.compute

    def scaled(i: Sequence[Expr]) -> Expr:
        v = element(value, i, wide)
        return v if scale == 1 else s.mul(v, scale)

    if not x.shape:  # one element, which the one index cannot miss
        return b.scatter(x, [1], lambda k: ((), scaled((k,))), combiner)
    d = wrap(dim, len(x.shape))
    extents = [*x.shape[:d], index.size, *x.shape[d + 1 :]]

    def point(*i: Expr) -> tuple[list[Expr], Expr]:
        own = i[d : d + 1] if index.shape else []
        return along(i, d, lambda _: index_at(index, own)), scaled(i)

    return b.scatter(x, extents, point, combiner, distinct=index.name in b.permutations)


def index_add(
    b: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    return _index_write(b, x, dim, index, source, alpha, "sum")


def index_copy(b: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _index_write(b, x, dim, index, source, 1, None)


def index_fill(b: Builder, x: Tensor, dim: int, index: Tensor, value: Operand) -> Tensor:
    return _index_write(b, x, dim, index, value, 1, None)


def index_reduce(
    b: Builder,
    x: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    if reduce != "mean" and include_self:
        return _index_write(b, x, dim, index, source, 1, _combiner(reduce))
    d = wrap(dim, len(x.shape))

    def point(*i: Expr) -> tuple[list[Expr], Expr]:
        at = along(i, d, lambda k: index_at(index, [k] if index.shape else [])) if x.shape else []
        return at, element(source, i[len(i) - len(source.shape) :], x.dtype)

    extents = [*x.shape[:d], index.size, *x.shape[d + 1 :]]
    return _reduced_at(b, x, extents, point, _combiner(reduce), reduce == "mean", include_self)


def put(b: Builder, x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Writes into the flattened `x`."""

    def point(*i: Expr) -> tuple[Sequence[Expr], Expr]:
        k = from_either_end(index_at(index, i), x.size)
        value = load(source, reshape_index(source.shape, index.shape, i))
        return reshape_index(x.shape, (x.size,), (k,)), value

    return b.scatter(x, index.shape, point, "sum" if accumulate else None)


# Writes to a fixed part of a tensor read one of two tensors at every position: no Scatter needed.


def slice_scatter(
    b: Builder,
    x: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    d = wrap(dim, len(x.shape))
    first, last = clamp_slice(start, end, x.shape[d])
    if (first, last, step) == (0, x.shape[d], 1) and src.dtype is x.dtype:
        return src

    def body(*i: Expr) -> Expr:
        tests: list[Expr] = []
        if bounds(first)[1] >= step:
            tests.append(s.ge(i[d], first))
        if bounds(x.shape[d] - last)[1] > 0:
            tests.append(s.lt(i[d], last))
        if step != 1:
            tests.append(s.eq(s.mod(i[d], step), first % step))
        new = load(src, along(i, d, lambda k: s.sub(s.floordiv(k, step), first // step)))
        return s.select(s.both(*tests), cast(new, x.dtype), load(x, i))

    return b.result(body)


def select_scatter(b: Builder, x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    d = wrap(dim, len(x.shape))
    k = index + x.shape[d] if index < 0 else index

    def body(*i: Expr) -> Expr:
        new = cast(load(src, [*i[:d], *i[d + 1 :]]), x.dtype)
        return s.select(s.eq(i[d], k), new, load(x, i))

    return b.result(body)


def diagonal_scatter(
    b: Builder, x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    p, q = wrap(dim1, len(x.shape)), wrap(dim2, len(x.shape))

    def body(*i: Expr) -> Expr:
        rest = [e for k, e in enumerate(i) if k not in (p, q)]
        along_it = i[q] if offset < 0 else i[p]
        inside = s.eq(s.sub(i[q], i[p]), offset)
        return s.select(inside, cast(load(src, [*rest, along_it]), x.dtype), load(x, i))

    return b.result(body)


LOWERINGS: Mapping[str, Lowering] = {
    "aten.index_put": index_put,
    "aten._unsafe_index_put": index_put,
    "aten.scatter.src": scatter,
    "aten.scatter.value": scatter,
    "aten.scatter.reduce": scatter,
    "aten.scatter.value_reduce": scatter,
    "aten.scatter_add": scatter_add,
    "aten.scatter_reduce.two": scatter_reduce,
    "aten.index_add": index_add,
    "aten.index_copy": index_copy,
    "aten.index_fill": index_fill,
    "aten.index_reduce": index_reduce,
    "aten.put": put,
    "aten.slice_scatter": slice_scatter,
    "aten.select_scatter": select_scatter,
    "aten.diagonal_scatter": diagonal_scatter,
}
