"""Distances between vectors."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from monotile.frontend.builder import Builder, broadcast, load, raised
from monotile.frontend.lower import scalar as s
from monotile.ir.expr import Expr, Tensor, const

Lowering = Callable[..., Any]


def _term(p: float, difference: Expr) -> Expr:
    """What is summed (for an infinite `p`: maximised) in a p-norm."""
    size = s.call("abs", difference)
    if p == 0:
        one, zero = const(1, size.dtype), const(0, size.dtype)
        return s.select(s.ne(size, 0), one, zero)
    if p in (1, math.inf):
        return size
    return s.mul(difference, difference) if p == 2 else s.op("pow", size, p)


def _root(p: float, total: Expr) -> Expr:
    if p in (0, 1, math.inf):
        return total
    return s.call("sqrt", total) if p == 2 else s.op("pow", total, 1 / p)


def cdist(b: Builder, x: Tensor, y: Tensor, p: float = 2.0, *_: object) -> Tensor:
    """The p-norm of x[..., i, :] - y[..., j, :], leading dimensions broadcast."""

    def body(*axes: Expr) -> Expr:
        *lead, i, j, r = axes
        left = raised(x, [*broadcast(x.shape[:-2], lead), i, r])
        right = raised(y, [*broadcast(y.shape[:-2], lead), j, r])
        return _term(p, s.sub(left, right))

    combiner = "max" if math.isinf(p) else "sum"
    wide = b.dtype.compute
    if not x.shape[-1]:
        return b.result(lambda *_: const(0, b.dtype))
    total = b.emit(b.shape, wide, body, reduce=(x.shape[-1],), combiner=combiner, part="total")
    return b.result(lambda *i: _root(p, load(total, i)))


LOWERINGS: Mapping[str, Lowering] = {
    "aten.cdist": cdist,
    "aten._cdist_forward": cdist,
}
