"""Sorting very many elements digit by digit, the lowest first: each pass keeps the order of equal digits, and counts (`counted_sort.py`)."""

from collections.abc import Sequence

from monotile.frontends.builder import Builder, load
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.counted_sort import counted_ranks
from monotile.frontends.torch.lower.long_sort import order_of_ranks
from monotile.frontends.torch.lower.matrix_loops import iterated
from monotile.frontends.torch.lower.sort_keys import value_of
from monotile.frontends.torch.lower.views import along
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Tensor
from monotile.ir.intervals import Interval

VAST = 1 << 14  # elements of 32 bits, from which on this is worth its passes
BITS = 4  # of a digit
BLOCK = 32  # elements that are counted one by one


def radix_order(b: Builder, x: Tensor, d: int, descending: bool, bits: int) -> Tensor:
    """The positions of the elements along `d` in their order. bits: of the values of `sort_keys.py`, signed."""
    lowest = -(1 << bits - 1)

    def unsigned(*i: Expr) -> Expr:
        return s.op("bitxor", value_of(x, i, descending), lowest)

    values = b.emit(x.shape, DType.I64, unsigned, part="values")
    identity = b.emit(x.shape, DType.I64, lambda *i: i[d], part="identity")

    def step(
        c: Builder, number: Axis, states: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        (order,) = states

        def digit(*i: Expr) -> Expr:
            value = load(values, along(i, d, lambda _: load(order, i)))
            return s.op("bitand", s.op("shr", value, s.mul(number, BITS)), (1 << BITS) - 1)

        digits = c.emit(x.shape, DType.I64, digit, part="digits")
        rank = counted_ranks(c, digits, d, Interval(0, (1 << BITS) - 1), False, BLOCK)

        return [order_of_ranks(c, rank, d, order)], []

    (order,), _ = iterated(b, -(-bits // BITS), [identity], step)
    return order
