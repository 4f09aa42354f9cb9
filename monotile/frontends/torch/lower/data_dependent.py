"""Operators with data-dependent result sizes: the elements that a mask selects, and the positions of nonzero elements."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from monotile.frontends.builder import Builder, broadcast_shape, element, load
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.masks import counted
from monotile.frontends.torch.lower.reshape import reshape_index
from monotile.frontends.torch.sizes.size import Size
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, idx

Lowering = Callable[..., Any]

SELECTING = frozenset({"aten.nonzero", "aten.masked_select", "aten.index", "torchvision.nms"})
_COMPARED = 1 << 22  # comparisons in one stage; were there more, each place would be written


def places(b: Builder, x: Tensor, size: int) -> Tensor:
    """The flat positions of the nonzero elements of `x`, ascending: the first `size`; if there are fewer, the rest is the number of
    elements of `x`."""
    n = x.size
    if not x.shape:
        scalar = x
        x = b.emit((1,), x.dtype, lambda _: load(scalar, ()), part="row")
    mask = b.emit(x.shape, DType.BOOL, lambda *i: cast(load(x, i), DType.BOOL), part="nonzero")
    count = counted(b, mask, mask.shape)
    _define(b, size, mask)
    if int(n) * int(size) > _COMPARED:
        return _written(b, mask, count, size)

    def before(k: Expr, r: Expr) -> Expr:  # so many elements stand before number k
        return cast(s.le(load(count, [r]), k), DType.I64)

    return b.emit((size,), DType.I64, before, reduce=(n,), combiner="sum", part="place")


def _define(b: Builder, size: int, mask: Tensor) -> None:
    """Defines `size` as the number of true elements of the mask, if it is a symbol that stands for a number of the data."""
    if not isinstance(size, Size) or str(size.expr) in b.sizes:
        return
    if size.expr in free_unbacked_symbols(size.expr):
        b.sizes[str(size.expr)] = b.emit(
            (), DType.I64, lambda *r: cast(load(mask, r), DType.I64), reduce=mask.shape, combiner="sum", part="size",
        )  # fmt: skip


def _written(b: Builder, mask: Tensor, count: Tensor, size: int) -> Tensor:
    """Each position written where its count says; positions beyond the first `size` are written behind all."""
    n = mask.size
    room = b.emit((int(size) + 1,), DType.I64, lambda _: s.add(idx(0), n), part="room")

    def point(p: Expr) -> tuple[Sequence[Expr], Expr]:
        holds = load(mask, reshape_index(mask.shape, (n,), (p,)))
        at = s.minimum(s.sub(load(count, [p]), 1), int(size))
        return [s.select(holds, at, idx(int(size)))], p

    found = b.scatter(room, (n,), point, "min", part="places")
    return b.emit((size,), DType.I64, lambda k: load(found, [k]), part="place")


def _coordinate(x: Tensor, flat: Expr, d: int) -> Expr:
    """Coordinate `d` of the element at the flat position."""
    return s.mod(s.floordiv(flat, x.strides[d]), x.shape[d])


def _row(x: Tensor, flat: Expr, d: Expr) -> Expr:
    """Coordinate `d` of the element of `x` at the flat position."""
    at: Expr = idx(0)
    for dim in reversed(range(len(x.shape))):
        own = _coordinate(x, flat, dim)
        at = own if dim == len(x.shape) - 1 else s.select(s.eq(d, dim), own, at)
    return at


def nonzero(b: Builder, x: Tensor) -> Tensor:
    """The positions of nonzero elements, one per row."""
    found = places(b, x, b.shape[0])
    return b.result(lambda k, d: _row(x, load(found, [k]), d))


def nonzero_static(b: Builder, x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first `size` positions of nonzero elements; surplus rows hold `fill_value`."""
    if not x.size:
        return b.result(lambda *_: idx(fill_value))
    found = places(b, x, size)

    def body(k: Expr, d: Expr) -> Expr:
        flat = load(found, [k])
        return s.select(s.lt(flat, x.size), _row(x, flat, d), idx(fill_value))

    return b.result(body)


def masked_select(b: Builder, x: Tensor, mask: Tensor) -> Tensor:
    shape = broadcast_shape(x.shape, mask.shape)
    if mask.shape != shape:
        own = mask
        mask = b.emit(shape, DType.BOOL, lambda *i: element(own, i, DType.BOOL), part="mask")
    found = places(b, mask, b.shape[0])

    def body(k: Expr) -> Expr:
        return element(
            x, [_coordinate(mask, load(found, [k]), d) for d in range(len(shape))], x.dtype
        )

    return b.result(body)


def most(op: str, given: Sequence[Tensor]) -> int:
    """The largest number of elements that an operator of these tensors may select."""
    return math.prod(map(int, selected_from(op, [(t.shape, is_mask(t)) for t in given])))


def selected_from(op: str, given: Sequence[tuple[Sequence[Any], bool]]) -> Sequence[Any]:
    """The dimensions whose elements an operator selects. given: the shape of each of its tensors, and whether it is a mask."""
    shapes = [shape for shape, _ in given]
    match op:
        case "aten.masked_select":
            return broadcast_shape(*map(tuple, shapes))
        case "torchvision.nms":
            return shapes[0][:1]
        case _:
            return next((shape for shape, masks in given if masks), shapes[0])


def is_mask(t: Tensor) -> bool:
    return t.dtype in (DType.BOOL, DType.U8)


def as_places(b: Builder, indices: Sequence[Tensor | None], size: int) -> list[Tensor | None]:
    """`indices` with each mask replaced by the positions that it selects, one tensor per dimension of the mask."""
    out: list[Tensor | None] = []
    for t in indices:
        if t is None or not is_mask(t):
            out.append(t)
            continue
        found = places(b, t, size)

        def at(k: Expr, d: int, t: Tensor = t, found: Tensor = found) -> Expr:
            return _coordinate(t, load(found, [k]), d)

        out += [
            b.emit((size,), DType.I64, partial(at, d=d), part="at") for d in range(len(t.shape))
        ]
    return out


LOWERINGS: Mapping[str, Lowering] = {
    "aten.nonzero": nonzero,
    "aten.nonzero_static": nonzero_static,
    "aten.masked_select": masked_select,
}
