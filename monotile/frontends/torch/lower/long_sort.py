"""Sorting many elements: ranks within blocks, and in every other block once these are sorted.

Each element is compared with those of its own block, with the last of each segment of the other blocks, and with one segment of each: n (B + n / B
(B / S + S)) comparisons for blocks of B in segments of S, instead of n * n.
"""

from collections.abc import Callable, Sequence

from monotile.frontends.builder import Builder, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.views import along
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, idx

LONG = 2048  # elements, from which on the shorter way is worth its stages
BLOCK, SEGMENT = 256, 16
# Of two values, whether the second comes before the first; the third says so for equal ones.
Before = Callable[[Expr, Expr, Expr], Expr]


def long_ranks(b: Builder, x: Tensor, d: int, before: Before, *, distinct: bool) -> Tensor:
    """The rank of each element along `d`; equal elements keep their order. distinct: whether of any two one comes before the other, whichever is
    the earlier one."""
    n, shape = x.shape[d], x.shape
    blocks = -(-n // BLOCK)

    def at(t: Tensor, i: Sequence[Expr], place: Expr) -> Expr:
        """An element of `t` at a place of `d`; the last one behind all, so that it can be loaded before that is known."""
        return raised(t, along(i, d, lambda _: s.minimum(place, n - 1)))

    def block_of(i: Sequence[Expr]) -> Expr:
        return s.floordiv(i[d], BLOCK)

    def place_of(block: Expr, r: Expr) -> Expr:
        return s.add(s.mul(block, BLOCK), r)

    def within(*axes: Expr) -> Expr:
        *i, r = axes
        place = place_of(block_of(i), r)
        found = before(raised(x, i), at(x, i, place), s.lt(place, i[d]))
        return cast(s.both(found, s.lt(place, n)), DType.I64)

    own = b.emit(shape, DType.I64, within, reduce=(BLOCK,), combiner="sum", part="block_rank")

    def placed(*axes: Expr) -> Expr:
        *i, r = axes
        place = place_of(block_of(i), r)
        found = s.eq(at(own, i, place), s.mod(i[d], BLOCK))
        return s.select(s.both(s.lt(place, n), found), s.minimum(place, n - 1), idx(0))

    order = b.emit(shape, DType.I64, placed, reduce=(BLOCK,), combiner="max", part="block_order")
    ordered = b.emit(shape, x.dtype, lambda *i: load(x, along(i, d, lambda _: load(order, i))), part="in_blocks")  # fmt: skip

    def ahead(i: Sequence[Expr], block: Expr, place: Expr) -> Expr:
        """Whether the element at `place` of the sorted blocks comes before the one at `i`."""
        found = before(raised(x, i), at(ordered, i, place), s.lt(block, block_of(i)))
        return s.both(found, s.lt(place, n))

    def passed(*axes: Expr) -> Expr:
        block, *i, segment = axes
        last = place_of(block, s.add(s.mul(segment, SEGMENT), SEGMENT - 1))
        return cast(ahead(i, block, last), DType.I64)

    # Neighbouring threads compare neighbours with one element.
    segments = b.emit((blocks, *shape), DType.I64, passed, reduce=(BLOCK // SEGMENT,), combiner="sum", part="segments")  # fmt: skip

    def counted(*axes: Expr) -> Expr:
        *i, block, r = axes
        begun = s.mul(load(segments, (block, *i)), SEGMENT)
        within_block = s.add(begun, r)
        there = ahead(i, block, place_of(block, within_block))
        found = cast(s.both(there, s.lt(within_block, BLOCK)), DType.I64)
        first = s.eq(r, 0)
        other = s.add(found, s.select(first, begun, idx(0)))
        if distinct:  # the element's own block is like others
            return other
        return s.select(s.eq(block, block_of(i)), s.select(first, load(own, i), idx(0)), other)

    return b.emit(shape, DType.I64, counted, reduce=(blocks, SEGMENT), combiner="sum", part="rank")


def order_of_ranks(b: Builder, rank: Tensor, d: int, places: Tensor | None = None) -> Tensor:
    """The position along `d` of the element of each rank. places: the elements' positions, if they are not in order."""
    nothing = b.emit(rank.shape, DType.I64, lambda *_: idx(0), part="unordered")

    def point(*i: Expr) -> tuple[Sequence[Expr], Expr]:
        return along(i, d, lambda _: load(rank, i)), load(places, i) if places else i[d]

    return b.scatter(nothing, rank.shape, point, part="all_order", distinct=True)
