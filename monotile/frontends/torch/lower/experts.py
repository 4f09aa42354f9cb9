"""Mixtures of experts: grouped matrix products (each row selects its matrix), and histograms."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from monotile.frontends.builder import Builder, Unsupported, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.indexing import index_at
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, const

Lowering = Callable[..., Any]


def grouped_product(
    b: Builder,
    x: Tensor,
    weight: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: object = None,
) -> Tensor:
    """x[t] · weight[g(t)], where group g holds the rows offs[g - 1] <= t < offs[g]."""
    if offs is None or len(x.shape) != 2 or len(weight.shape) != 3 or bias is not None:
        raise Unsupported("operands other than rows in groups and one matrix a group")
    groups = weight.shape[0]

    def passed(t: Expr, g: Expr) -> Expr:
        return cast(s.le(index_at(offs, [g]), t), DType.I64)

    group = b.emit(x.shape[:1], DType.I64, passed, reduce=(groups,), combiner="sum", part="group")

    def body(t: Expr, n: Expr, k: Expr) -> Expr:
        own = s.minimum(load(group, [t]), groups - 1)  # rows after the last group go with it
        return s.mul(raised(x, [t, k]), raised(weight, [own, k, n]))

    return b.result(body, reduce=(x.shape[1],), combiner="sum")


def histc(b: Builder, x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """The number of elements in each of `bins` equal intervals of min ... max, both ends included."""
    if min == max and bins > 1:
        raise Unsupported("bounds that depend on the data")
    if min == max:  # those of the data, and one part between
        return b.result(lambda _: cast(const(math.prod(x.shape), DType.I64), b.dtype))
    width = (max - min) / bins

    def body(k: Expr, *i: Expr) -> Expr:
        v = raised(x, i)
        inside = s.both(s.ge(v, min), s.le(v, max))
        place = cast(s.div(s.sub(cast(v, DType.F32), float(min)), width), DType.I64)
        return cast(s.both(inside, s.eq(s.minimum(place, bins - 1), k)), DType.I64)

    count = b.emit((bins,), DType.I64, body, reduce=x.shape, combiner="sum", part="count")
    return b.result(lambda k: cast(load(count, [k]), b.dtype))


LOWERINGS: Mapping[str, Lowering] = {
    "aten._grouped_mm": grouped_product,
    "transformers.grouped_mm_fallback": grouped_product,
    "aten.histc": histc,
}
