"""Elements that are sorted, as integers that are all different: one comparison of two says which comes first.

The high half says where an element's value comes among all values, the low half where the element stands. NaN is greater than every number, both zeros
are equal, and equal values keep their order, as in PyTorch.
"""

from collections.abc import Sequence

from monotile.frontends.builder import Builder, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, Unary, cast, const
from monotile.ir.intervals import Interval

HALF = 1 << 32


def keyed(
    b: Builder, x: Tensor, d: int, values: Interval | None, descending: bool
) -> Tensor | None:
    """The keys of `x` along `d`, int64; None if half a key does not tell all values apart. values: what integers are between."""
    if x.dtype.is_float:
        if x.dtype.compute is not DType.F32:
            return None
    elif values is None or not values.inside(-HALF // 2, HALF // 2 - 1):
        return None

    def key(*i: Expr) -> Expr:
        return s.add(s.mul(value_of(x, i, descending), HALF), i[d])

    return b.emit(x.shape, DType.I64, key, part="keys")


def value_of(x: Tensor, i: Sequence[Expr], descending: bool) -> Expr:
    """An int64 that ascends with the element, or descends; of a float32 and smaller ones within 32 bits."""
    v = raised(x, i)
    value = cast(_of_float(v) if x.dtype.is_float else v, DType.I64)
    return s.sub(-1, value) if descending else value


def _of_float(v: Expr) -> Expr:
    """An integer of the same size that ascends with a float."""
    bits, greatest = Unary("bits", v), (1 << 8 * v.dtype.itemsize - 1) - 1
    signed = s.select(s.lt(bits, 0), s.op("bitxor", bits, greatest), bits)
    number = s.select(s.eq(v, 0.0), const(0, bits.dtype), signed)
    return s.select(s.isnan(v), const(greatest, bits.dtype), number)
