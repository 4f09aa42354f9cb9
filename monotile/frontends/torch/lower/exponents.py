"""Mantissas and exponents of floats."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import Builder, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, const

Lowering = Callable[..., Any]


def _scaled(x: Expr, e: Expr, bits: int) -> Expr:
    """x / 2 ** e without rounding; |e| is less than 2 ** bits, and the result is near 1."""
    size, grows = s.call("abs", e), s.lt(e, 0)
    for k in range(bits):
        has = s.eq(s.mod(s.floordiv(size, 1 << k), 2), 1)
        for part in [k] if k < bits - 1 else [k - 1, k - 1]:  # the last power itself is too large
            up, down = 2.0 ** (1 << part), 2.0 ** -(1 << part)
            factor = s.select(grows, const(up, x.dtype), down)
            x = s.mul(x, s.select(has, factor, 1.0))
    return x


def frexp(b: Builder, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mantissas in [1/2, 1) and exponents; the exponent of zero, infinity and NaN is 0."""
    wide = x.dtype.compute

    def guess(*i: Expr) -> Expr:
        size = s.call("abs", raised(x, i))
        usual = s.both(s.gt(size, 0), s.lt(size, math.inf))
        log = s.call("floor", s.call("log2", s.select(usual, size, 1.0)))
        return s.select(usual, s.add(cast(log, DType.I32), 1), const(0, DType.I32))

    def over(i: Sequence[Expr]) -> tuple[Expr, Expr]:
        """Whether the guess was too small, and whether it was too large."""
        size = s.call("abs", load(rough, i))
        return s.both(s.ge(size, 1), s.lt(size, math.inf)), s.both(s.gt(size, 0), s.lt(size, 0.5))

    def mantissa(*i: Expr) -> Expr:
        large, small = over(i)
        return s.mul(
            load(rough, i),
            s.select(large, const(0.5, wide), s.select(small, const(2.0, wide), 1.0)),
        )

    def exponent(*i: Expr) -> Expr:
        large, small = over(i)
        one, less = const(1, DType.I32), const(-1, DType.I32)
        return s.add(load(near, i), s.select(large, one, s.select(small, less, 0)))

    near = b.emit(x.shape, DType.I32, guess, part="near")
    bits = 11 if wide is DType.F64 else 8
    rough = b.emit(
        x.shape, wide, lambda *i: _scaled(raised(x, i), load(near, i), bits), part="rough"
    )
    return b.result(mantissa, index=0), b.result(exponent, index=1)


LOWERINGS: Mapping[str, Lowering] = {"aten.frexp": frexp}
