"""Operators that read or write at computed positions."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontend.builder import (
    Builder,
    Operand,
    Unsupported,
    broadcast,
    broadcast_shape,
    element,
    load,
    wrap,
)
from monotile.frontend.lower import scalar as s
from monotile.frontend.lower.reshape import reshape_index
from monotile.frontend.lower.views import along, clamp_slice
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, const, idx

Lowering = Callable[..., Any]
Indices = Sequence[Tensor | None]


def index_at(t: Tensor, at: Sequence[Expr]) -> Expr:
    """The element of an index tensor as an int64."""
    return cast(load(t, broadcast(t.shape, at)), DType.I64)


def from_either_end(k: Expr, extent: int) -> Expr:
    """A position, counted from the end where it is negative."""
    return s.select(s.lt(k, 0), s.add(k, extent), k)


def embedding(b: Builder, weight: Tensor, indices: Tensor, *_: object) -> Tensor:
    return b.result(lambda *i: load(weight, [index_at(indices, i[:-1]), i[-1]]))


def embedding_bag(
    b: Builder,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = -1,
) -> tuple[Tensor | None, ...]:
    """The sum, mean or maximum of the rows of each bag: bag k holds indices offsets[k] to
    offsets[k + 1]. What the other results hold is for the backward pass."""
    bags, features = b.shape
    count = indices.size
    wide = weight.dtype.compute
    skipped = None if padding_idx is None or padding_idx < 0 else padding_idx

    def inside(bag: Expr, r: Expr) -> Expr:
        first = index_at(offsets, [bag])
        tests = [s.ge(r, first)]
        if include_last_offset or bags > 1:
            following = index_at(offsets, [s.minimum(s.add(bag, 1), offsets.size - 1)])
            last = s.lt(r, following)
            final = s.eq(bag, bags - 1)
            tests.append(last if include_last_offset else s.either(final, last))
        if skipped is not None:
            tests.append(s.ne(index_at(indices, [r]), skipped))
        return s.both(*tests)

    held = b.emit((bags, count), DType.BOOL, inside, part="held")

    def row(bag: Expr, j: Expr, r: Expr) -> Expr:
        v = cast(load(weight, [index_at(indices, [r]), j]), wide)
        if per_sample_weights is not None:
            v = s.mul(v, cast(load(per_sample_weights, [r]), wide))
        return s.select(load(held, [bag, r]), v, const(-math.inf if mode == 2 else 0.0, wide))

    combiner = "max" if mode == 2 else "sum"
    rows = b.emit((bags, features), wide, row, reduce=(count,), combiner=combiner, part="rows")
    sizes = b.emit(
        (bags,),
        DType.I64,
        lambda bag, r: cast(load(held, [bag, r]), DType.I64),
        reduce=(count,),
        combiner="sum",
        part="sizes",
    )

    def result(bag: Expr, j: Expr) -> Expr:
        v, n = load(rows, [bag, j]), load(sizes, [bag])
        if mode == 0:
            return v
        whole = v if mode == 2 else s.div(v, cast(n, wide))
        return s.select(s.gt(n, 0), whole, const(0.0, wide))

    return (b.result(result, index=0), *([None] * (len(b.results) - 1)))


def index_select(b: Builder, x: Tensor, dim: int, index: Tensor) -> Tensor:
    if not x.shape:
        return x
    d = wrap(dim, len(x.shape))
    at = (lambda k: index_at(index, [k])) if index.shape else (lambda k: index_at(index, []))
    return b.result(lambda *i: load(x, along(i, d, at)))


def gather(b: Builder, x: Tensor, dim: int, index: Tensor, **_: object) -> Tensor:
    if not x.shape:
        return b.result(lambda *i: load(x, ()))
    d = wrap(dim, len(x.shape))
    return b.result(lambda *i: load(x, along(i, d, lambda _: index_at(index, i))))


def take_along_dim(b: Builder, x: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    if dim is None:
        return take(b, x, indices)
    d = wrap(dim, len(x.shape))
    return b.result(
        lambda *i: load(x, along(broadcast(x.shape, i), d, lambda _: index_at(indices, i)))
    )


def take(b: Builder, x: Tensor, index: Tensor) -> Tensor:
    """From `x` as if it were flat."""

    def body(*i: Expr) -> Expr:
        k = from_either_end(index_at(index, i), x.size)
        return load(x, reshape_index(x.shape, (x.size,), (k,)))

    return b.result(body)


def _integers(indices: Indices) -> list[tuple[int, Tensor]]:
    """The dimensions that are indexed, and by what; bool masks make shapes of data."""
    held = [(d, t) for d, t in enumerate(indices) if t is not None]
    for _, t in held:
        if t.dtype in (DType.BOOL, DType.U8):
            raise Unsupported("indexing with a mask, which makes a shape of data: use torch.where")
    return held


def _where_indexed(held: Sequence[tuple[int, Tensor]]) -> int:
    """Where the indices' own dimensions stand in the result: in place if they are neighbours."""
    dims = [d for d, _ in held]
    return dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0


def _source_index(
    shape: Sequence[int], held: Sequence[tuple[int, Tensor]], at: Sequence[Expr]
) -> list[Expr]:
    """The index into a tensor of `shape` of the element at `at` of its advanced indexing."""
    lead = _where_indexed(held)
    rank = len(broadcast_shape(*(t.shape for _, t in held)))
    own = at[lead : lead + rank]
    plain = iter([*at[:lead], *at[lead + rank :]])
    by = dict(held)
    return [
        from_either_end(index_at(by[k], own), n) if k in by else next(plain)
        for k, n in enumerate(shape)
    ]


def index(b: Builder, x: Tensor, indices: Indices) -> Tensor:
    """x[indices], with tensors of integers."""
    held = _integers(indices)
    if not held:
        return x
    return b.result(lambda *i: load(x, _source_index(x.shape, held, i)))


def index_put(
    b: Builder, x: Tensor, indices: Indices, values: Tensor, accumulate: bool = False, *_: object
) -> Tensor:
    """`x` with x[indices] = values, or += values."""
    tensors = [t for t in indices if t is not None]
    if len(tensors) == 1 and tensors[0].dtype is DType.BOOL and values.size == 1:
        return _masked_put(b, x, indices, values, accumulate)
    held = _integers(indices)
    if not held:
        return b.result(lambda *i: element(values, i, x.dtype))
    lead = _where_indexed(held)
    own = broadcast_shape(*(t.shape for _, t in held))
    plain = [n for k, n in enumerate(x.shape) if k not in dict(held)]
    extents = [*plain[:lead], *own, *plain[lead:]]

    def point(*i: Expr) -> tuple[list[Expr], Expr]:
        return _source_index(x.shape, held, i), element(values, i, x.dtype)

    return b.scatter(x, extents, point, "sum" if accumulate else None)


def _masked_put(b: Builder, x: Tensor, indices: Indices, value: Tensor, accumulate: bool) -> Tensor:
    """One value wherever a mask holds; the mask stands for as many dimensions as it has."""
    first = next(k for k, t in enumerate(indices) if t is not None)
    mask = indices[first]
    assert mask is not None
    wide = x.dtype.compute

    def body(*i: Expr) -> Expr:
        inside = load(mask, i[first : first + len(mask.shape)])
        old = cast(load(x, i), wide)
        new = cast(load(value, [idx(0)] * len(value.shape)), wide)
        return s.select(inside, s.add(old, new) if accumulate else new, old)

    return b.result(body)


_SCATTER_COMBINERS = {
    "sum": "sum",
    "add": "sum",
    "prod": "prod",
    "multiply": "prod",
    "amax": "max",
    "amin": "min",
}


def scatter(
    b: Builder,
    x: Tensor,
    dim: int,
    index: Tensor,
    src: Operand,
    *,
    reduce: str | None = None,
) -> Tensor:
    """`x` with x[..., index[i], ...] = src[i] along `dim`."""
    if reduce is not None and reduce not in _SCATTER_COMBINERS:
        raise Unsupported(f"reduce={reduce!r}")
    combiner = None if reduce is None else _SCATTER_COMBINERS[reduce]
    d = wrap(dim, len(x.shape))

    def point(*i: Expr) -> tuple[list[Expr], Expr]:
        at = along(i, d, lambda _: index_at(index, i)) if x.shape else []
        value = load(src, i) if isinstance(src, Tensor) else const(src, x.dtype)
        return at, cast(value, x.dtype)

    return b.scatter(x, index.shape, point, combiner)


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
    if not include_self:
        raise Unsupported("include_self=False")
    return scatter(b, x, dim, index, src, reduce=reduce)


def _index_write(
    b: Builder, x: Tensor, dim: int, index: Tensor, value: Operand, scale: float, add: bool
) -> Tensor:
    d = wrap(dim, len(x.shape))
    extents = list(x.shape)
    if extents:
        extents[d] = index.size

    def point(*i: Expr) -> tuple[list[Expr], Expr]:
        own = i[d : d + 1] if index.shape else []
        at = along(i, d, lambda _: index_at(index, own)) if i else []
        v = element(value, i, x.dtype.compute)
        return at, v if scale == 1 else s.mul(v, scale)

    return b.scatter(x, extents, point, "sum" if add else None)


def index_add(
    b: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1
) -> Tensor:
    return _index_write(b, x, dim, index, source, alpha, add=True)


def index_copy(b: Builder, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _index_write(b, x, dim, index, source, 1, add=False)


def index_fill(b: Builder, x: Tensor, dim: int, index: Tensor, value: Operand) -> Tensor:
    return _index_write(b, x, dim, index, value, 1, add=False)


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
        k = s.sub(i[d], first)
        tests: list[Expr] = []
        if first:
            tests.append(s.ge(i[d], first))
        if last < x.shape[d]:
            tests.append(s.lt(i[d], last))
        if step != 1:
            tests.append(s.eq(s.mod(k, step), 0))
        new = load(src, along(i, d, lambda _: s.floordiv(k, step)))
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


def _stands_before(right: bool) -> Callable[[Expr, Expr], Expr]:
    """Is `boundary` before the place where `value` is inserted? NaN goes to the end."""
    name = "gt" if right else "ge"
    return lambda boundary, value: s.negation(s.op(name, boundary, value))


def bucketize(
    b: Builder, x: Operand, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    test = _stands_before(right)
    wide = boundaries.dtype.compute

    def body(*axes: Expr) -> Expr:
        *i, r = axes
        value = element(x, i, wide)
        return cast(test(cast(load(boundaries, [r]), wide), value), DType.I64)

    return b.result(body, reduce=(boundaries.shape[0],), combiner="sum")


def searchsorted(
    b: Builder,
    sorted_sequence: Tensor,
    x: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    if sorter is not None:
        raise Unsupported("a sorter")
    test = _stands_before(right or side == "right")
    wide = sorted_sequence.dtype.compute

    def body(*axes: Expr) -> Expr:
        *i, r = axes
        row = i[: len(sorted_sequence.shape) - 1]
        value = element(x, i, wide)
        return cast(test(cast(load(sorted_sequence, [*row, r]), wide), value), DType.I64)

    return b.result(body, reduce=(sorted_sequence.shape[-1],), combiner="sum")


LOWERINGS: Mapping[str, Lowering] = {
    "aten.embedding": embedding,
    "aten._embedding_bag": embedding_bag,
    "aten._embedding_bag_forward_only": embedding_bag,
    "aten.index_select": index_select,
    "aten.gather": gather,
    "aten.take_along_dim": take_along_dim,
    "aten.take": take,
    "aten.index.Tensor": index,
    "aten._unsafe_index.Tensor": index,
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
    "aten.slice_scatter": slice_scatter,
    "aten.select_scatter": select_scatter,
    "aten.diagonal_scatter": diagonal_scatter,
    "aten.bucketize": bucketize,
    "aten.searchsorted": searchsorted,
}
