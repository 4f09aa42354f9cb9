"""Sorting many elements of few different values, such as numbers of experts: counts instead of comparisons.

An element comes after all of lower values, and after those of its own value in earlier blocks and earlier in its own: n (V + B) tests for V
values in blocks of B, and V (V + (n / B)^2) for the sums of the counts.
"""

from collections.abc import Sequence

from monotile.frontends.builder import Builder, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.scans import ahead_of_each
from monotile.frontends.torch.lower.views import along
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, idx
from monotile.ir.intervals import Interval

KINDS = 256  # at most
BLOCK = 128
SCANNED = 256  # blocks; sums over more are scans


def counted_ranks(
    b: Builder, x: Tensor, d: int, values: Interval, descending: bool, block: int = BLOCK
) -> Tensor:
    """The rank of each element along `d`; equal elements keep their order. values: all elements are among them. block: elements of a block."""
    n, shape, kinds = x.shape[d], x.shape, values.hi - values.lo + 1
    blocks = -(-n // block)

    def kind(i: Sequence[Expr]) -> Expr:
        """How many values come before that of the element."""
        v = cast(raised(x, i), DType.I64)
        return s.sub(values.hi, v) if descending else s.sub(v, values.lo)

    def of_kind(i: Sequence[Expr], place: Expr, v: Expr) -> Expr:
        """Whether there is an element at `place`, which may be behind all, and it is of kind `v`."""
        there = kind(along(i, d, lambda _: s.minimum(place, n - 1)))
        return s.both(s.lt(place, n), s.eq(there, v))

    def counted(*axes: Expr) -> Expr:
        *i, v, r = axes
        return cast(of_kind(i, s.add(s.mul(i[d], block), r), v), DType.I64)

    in_blocks = (*shape[:d], blocks, *shape[d + 1 :])
    counts = b.emit((*in_blocks, kinds), DType.I64, counted, reduce=(block,), combiner="sum", part="counts")  # fmt: skip

    earlier = ahead_of_each(b, counts, d, "sum", 0, many=int(blocks) > SCANNED)

    def every_block(*axes: Expr) -> Expr:
        *i, v, r = axes
        return load(counts, (*i[:d], r, *i[d:], v))

    rows = (*shape[:d], *shape[d + 1 :])
    totals = b.emit((*rows, kinds), DType.I64, every_block, reduce=(blocks,), combiner="sum", part="totals")  # fmt: skip

    def lower_kinds(*axes: Expr) -> Expr:
        *i, v, w = axes
        return s.select(s.lt(w, v), load(totals, (*i, w)), idx(0))

    lower = b.emit((*rows, kinds), DType.I64, lower_kinds, reduce=(kinds,), combiner="sum", part="lower")  # fmt: skip

    def before(*axes: Expr) -> Expr:
        *i, r = axes
        own, number = kind(i), s.floordiv(i[d], block)
        place = s.add(s.mul(number, block), r)
        within = s.both(s.lt(place, i[d]), of_kind(i, place, own))
        ahead = load(earlier, (*along(i, d, lambda _: number), own))
        outside = s.add(load(lower, (*i[:d], *i[d + 1 :], own)), ahead)
        return s.add(cast(within, DType.I64), s.select(s.eq(r, 0), outside, idx(0)))

    # One sum, so that those who read a rank do not add its parts each time.
    return b.emit(shape, DType.I64, before, reduce=(block,), combiner="sum", part="rank")
