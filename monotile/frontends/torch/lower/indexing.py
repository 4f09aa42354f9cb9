"""Operators that read at computed indices."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import (
    Builder,
    Operand,
    Unsupported,
    broadcast,
    broadcast_shape,
    element,
    load,
    wrap,
)
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.data_dependent import as_places, is_mask
from monotile.frontends.torch.lower.promotion import result_type
from monotile.frontends.torch.lower.reshape import reshape_index
from monotile.frontends.torch.lower.scans import scanned
from monotile.frontends.torch.lower.views import along
from monotile.frontends.torch.sizes.size import bounds
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, const

Lowering = Callable[..., Any]
Indices = Sequence[Tensor | None]


def index_at(t: Tensor, at: Sequence[Expr]) -> Expr:
    """An element of an index tensor, as int64."""
    return cast(load(t, broadcast(t.shape, at)), DType.I64)


def from_either_end(k: Expr, extent: int) -> Expr:
    """An index, counted from the end if it is negative."""
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
    """The sum, mean or maximum of the rows of each bag; bag k has the indices offsets[k] to offsets[k + 1]. The other results are for the
    backward pass."""
    bags, features = b.shape
    count = indices.shape[0]
    wide = weight.dtype.compute
    skipped = None if padding_idx is None or padding_idx < 0 else padding_idx

    def inside(bag: Expr, r: Expr) -> Expr:
        first = index_at(offsets, [bag])
        tests = [s.ge(r, first)]
        if include_last_offset or bounds(bags)[1] > 1:
            following = index_at(offsets, [s.minimum(s.add(bag, 1), offsets.shape[0] - 1)])
            last = s.lt(r, following)
            final = s.eq(bag, bags - 1)
            tests.append(last if include_last_offset else s.either(final, last))
        if skipped is not None:
            tests.append(s.ne(index_at(indices, [r]), skipped))
        return s.both(*tests)

    def row(bag: Expr, j: Expr, r: Expr) -> Expr:
        v = cast(load(weight, [index_at(indices, [r]), j]), wide)
        if per_sample_weights is not None:
            v = s.mul(v, cast(load(per_sample_weights, [r]), wide))
        return s.select(inside(bag, r), v, const(-math.inf if mode == 2 else 0.0, wide))

    combiner = "max" if mode == 2 else "sum"
    rows = b.emit((bags, features), wide, row, reduce=(count,), combiner=combiner, part="rows")
    sizes = b.emit(
        (bags,),
        DType.I64,
        lambda bag, r: cast(inside(bag, r), DType.I64),
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
    """Gather along a dimension with the others broadcast, or from all elements in a row."""
    if dim is None:

        def flat(i: Expr) -> Expr:
            k = index_at(indices, reshape_index(indices.shape, (indices.size,), (i,)))
            whole = from_either_end(k, x.size)
            return load(x, reshape_index(x.shape, (x.size,), (whole,)))

        return b.result(flat)
    d = wrap(dim, len(x.shape))

    def body(*i: Expr) -> Expr:
        k = from_either_end(index_at(indices, i), x.shape[d])
        return load(x, along(broadcast(x.shape, i), d, lambda _: k))

    return b.result(body)


def take(b: Builder, x: Tensor, index: Tensor) -> Tensor:
    """Gather from the flattened `x`."""

    def body(*i: Expr) -> Expr:
        k = from_either_end(index_at(index, i), x.size)
        return load(x, reshape_index(x.shape, (x.size,), (k,)))

    return b.result(body)


def integer_indices(indices: Indices) -> list[tuple[int, Tensor]]:
    """The indexed dimensions and their indices, which contain no masks."""
    held = [(d, t) for d, t in enumerate(indices) if t is not None]
    for _, t in held:
        if is_mask(t):
            raise Unsupported("a mask beside other indices: use torch.where")
    return held


def where_indexed(held: Sequence[tuple[int, Tensor]]) -> int:
    """Where the indices' own dimensions are in the result: in place if the indexed dimensions are adjacent."""
    dims = [d for d, _ in held]
    return dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0


def source_index(
    shape: Sequence[int], held: Sequence[tuple[int, Tensor]], at: Sequence[Expr]
) -> list[Expr]:
    """The index into a tensor of `shape` of the element at `at` of its advanced indexing."""
    lead = where_indexed(held)
    rank = len(broadcast_shape(*(t.shape for _, t in held)))
    own = at[lead : lead + rank]
    plain = iter([*at[:lead], *at[lead + rank :]])
    by = dict(held)
    return [
        from_either_end(index_at(by[k], own), n) if k in by else next(plain)
        for k, n in enumerate(shape)
    ]


def without_masks(b: Builder, indices: Indices) -> Indices:
    """`indices` of a read, with masks replaced by the positions of their nonzero elements."""
    masks = [t for t in indices if t is not None and is_mask(t)]
    if not masks:
        return indices
    each = [t for t in indices for _ in range(len(t.shape) if t is not None and is_mask(t) else 1)]
    held = [(d, t) for d, t in enumerate(each) if t is not None]
    rank = max(1 if is_mask(t) else len(t.shape) for _, t in held)
    return as_places(b, indices, b.shape[where_indexed(held) + rank - 1])


def index(b: Builder, x: Tensor, indices: Indices) -> Tensor:
    """x[indices], with integer tensors and masks."""
    held = integer_indices(without_masks(b, indices))
    if not held:
        return x
    return b.result(lambda *i: load(x, source_index(x.shape, held, i)))


def _stands_before(right: bool) -> Callable[[Expr, Expr], Expr]:
    """Whether `boundary` is before the insertion point of `value`. NaN is sorted to the end."""
    name = "gt" if right else "ge"
    return lambda boundary, value: s.negation(s.op(name, boundary, value))


def bucketize(
    b: Builder, x: Operand, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    test = _stands_before(right)
    wide = result_type((boundaries, x)).compute

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
    test = _stands_before(right or side == "right")
    wide = result_type((sorted_sequence, x)).compute

    def body(*axes: Expr) -> Expr:
        *i, r = axes
        row = i[: len(sorted_sequence.shape) - 1]
        value = element(x, i, wide)
        k = r if sorter is None else index_at(sorter, [*row, r])
        return cast(test(cast(load(sorted_sequence, [*row, k]), wide), value), DType.I64)

    return b.result(body, reduce=(sorted_sequence.shape[-1],), combiner="sum")


def repeated_positions(b: Builder, repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    """Each position i as often as `repeats` says: element k is the number of positions whose repetitions end at k or before."""
    n = repeats.size
    ends = scanned(b, repeats, 0, "sum", 0, DType.I64, part="ends")

    def ended(k: Expr, r: Expr) -> Expr:
        return cast(s.le(load(ends, [r]), k), DType.I64)

    found = b.emit(b.shape, DType.I64, ended, reduce=(n,), combiner="sum", part="ended")
    return b.result(lambda k: load(found, [k]))


LOWERINGS: Mapping[str, Lowering] = {
    "aten.repeat_interleave.Tensor": repeated_positions,
    "aten.embedding": embedding,
    "aten.embedding_bag.padding_idx": embedding_bag,
    "aten._embedding_bag": embedding_bag,
    "aten._embedding_bag_forward_only": embedding_bag,
    "aten.index_select": index_select,
    "aten.gather": gather,
    "aten.take_along_dim": take_along_dim,
    "aten.take": take,
    "aten.index.Tensor": index,
    "aten._unsafe_index.Tensor": index,
    "aten.bucketize": bucketize,
    "aten.searchsorted": searchsorted,
}
