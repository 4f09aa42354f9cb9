"""Reductions, and operators that consist of a few of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from monotile.frontends.builder import Builder, broadcast_shape, element, load, raised, wrap_all
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.reduce import Dims, Over, kept, reduce_dims, without
from monotile.frontends.torch.sizes.size import Size, most
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, const, idx

Lowering = Callable[..., Any]


def total(b: Builder, x: Tensor, dim: Dims = None, keepdim: bool = False, **_: object) -> Tensor:
    """A sum in the type of the result (int64 for integers), in at least float32."""
    dims = wrap_all(dim, len(x.shape))
    wide = b.dtype.compute
    return reduce_dims(b, x, Over(dims, keepdim), "sum", lambda i: cast(load(x, i), wide), b.dtype)


def mean(b: Builder, x: Tensor, dim: Dims = None, keepdim: bool = False, **_: object) -> Tensor:
    dims = wrap_all(dim, len(x.shape))
    wide = b.dtype.compute
    added = reduce_dims(
        b, x, Over(dims, keepdim), "sum", lambda i: cast(load(x, i), wide), wide, part="sum"
    )
    count = math.prod(x.shape[d] for d in dims)
    return b.result(lambda *i: s.div(load(added, i), count))


def product(
    b: Builder, x: Tensor, dim: int | None = None, keepdim: bool = False, **_: object
) -> Tensor:
    dims = wrap_all(dim, len(x.shape))
    wide = b.dtype.compute
    return reduce_dims(b, x, Over(dims, keepdim), "prod", lambda i: cast(load(x, i), wide), b.dtype)


def _extreme(combiner: str) -> Lowering:
    def lower(b: Builder, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
        dims = wrap_all(dim, len(x.shape))
        return reduce_dims(b, x, Over(dims, keepdim), combiner, lambda i: raised(x, i), x.dtype)

    return lower


def _extreme_with_index(combiner: str) -> Lowering:
    """max.dim, min.dim: values and indices."""

    def lower(b: Builder, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        dims = wrap_all(dim, len(x.shape))
        element = partial(raised, x)
        values = reduce_dims(b, x, Over(dims, keepdim), combiner, element, x.dtype, part="values")
        where = reduce_dims(
            b, x, Over(dims, keepdim), f"arg{combiner}", element, DType.I64, part="indices"
        )
        return values, where

    return lower


def _extreme_index(combiner: str) -> Lowering:
    def lower(b: Builder, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        dims = wrap_all(dim, len(x.shape))
        return reduce_dims(b, x, Over(dims, keepdim), combiner, lambda i: raised(x, i), DType.I64)

    return lower


def aminmax(
    b: Builder, x: Tensor, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims = wrap_all(dim, len(x.shape))
    low, high = (
        reduce_dims(b, x, Over(dims, keepdim), c, lambda i: raised(x, i), x.dtype, part=c)
        for c in ("min", "max")
    )
    return low, high


def _logical(combiner: str) -> Lowering:
    def lower(b: Builder, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
        dims = wrap_all(dim, len(x.shape))
        return reduce_dims(
            b,
            x,
            Over(dims, keepdim),
            combiner,
            lambda i: cast(load(x, i), DType.BOOL),
            b.dtype,
        )

    return lower


def count_nonzero(b: Builder, x: Tensor, dim: Dims = None) -> Tensor:
    dims = wrap_all(dim, len(x.shape))
    return reduce_dims(
        b, x, Over(dims), "sum", lambda i: cast(cast(load(x, i), DType.BOOL), DType.I64), DType.I64
    )


def moments(b: Builder, x: Tensor, dims: Sequence[int], correction: float) -> tuple[Tensor, Tensor]:
    """Mean and variance over `dims` in two passes, in at least float32, without the dimensions."""
    wide = x.dtype.compute
    count = math.prod(x.shape[d] for d in dims)
    added = reduce_dims(b, x, Over(dims), "sum", lambda i: raised(x, i), wide, part="sum")
    middle = b.emit(added.shape, wide, lambda *i: s.div(load(added, i), count), part="mean")

    def squared(i: Sequence[Expr]) -> Expr:
        d = s.sub(raised(x, i), load(middle, without(dims, i)))
        return s.mul(d, d)

    spreads = reduce_dims(b, x, Over(dims), "sum", squared, wide, part="squares")
    left: Any = count - correction
    divisor = most(left, 0)

    def spread(*i: Expr) -> Expr:
        # Of one value 0 / 0, said here: what is found for 0 may be the rounding of an operand that a fused operation did not round.
        value, nothing = s.div(load(spreads, i), const(divisor, wide)), const(math.nan, wide)
        if isinstance(divisor, Size):
            return value if divisor.low else s.select(s.lt(0, idx(divisor)), value, nothing)
        return nothing if count == 1 and divisor == 0 else value

    return middle, b.emit(added.shape, wide, spread, part="variance")


def _correction(unbiased: object, correction: float | None) -> float:
    if isinstance(unbiased, bool):
        return 1 if unbiased else 0
    return 1 if correction is None else correction


def _statistics(root: bool, with_mean: bool) -> Lowering:
    """var and std, alone or with the mean, in every overload."""

    def lower(
        b: Builder,
        x: Tensor,
        dim: bool | Dims = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        if isinstance(dim, bool):  # the overload (self, unbiased)
            dim, unbiased = None, dim
        dims = wrap_all(dim, len(x.shape))
        middle, variance = moments(b, x, dims, _correction(unbiased, correction))

        def spread_of(*i: Expr) -> Expr:
            v = load(variance, kept(dims, i, keepdim))
            return s.call("sqrt", v) if root else v

        first = b.result(spread_of, index=0)
        if not with_mean:
            return first
        return first, b.result(lambda *i: load(middle, kept(dims, i, keepdim)), index=1)

    return lower


def vector_norm(
    b: Builder, x: Tensor, ord: float = 2, dim: Dims = None, keepdim: bool = False, **_: object
) -> Tensor:
    dims = wrap_all(dim, len(x.shape))
    wide = b.dtype.compute

    def magnitude(i: Sequence[Expr]) -> Expr:
        return s.call("abs", cast(load(x, i), wide))

    def term(i: Sequence[Expr]) -> Expr:
        v = cast(load(x, i), wide)
        match ord:
            case 0:
                return s.select(s.ne(v, 0), const(1, wide), const(0, wide))
            case 1:
                return s.call("abs", v)
            case 2:
                return s.mul(v, v)
            case _:
                return s.op("pow", s.call("abs", v), float(ord))

    if ord and math.prod(x.shape[d] for d in dims) == 1:  # a power of it may not be a number
        return reduce_dims(b, x, Over(dims, keepdim), "max", magnitude, b.dtype)
    if math.isinf(ord):
        combiner = "max" if ord > 0 else "min"
        return reduce_dims(b, x, Over(dims, keepdim), combiner, magnitude, b.dtype)
    if ord in (0, 1):
        return reduce_dims(b, x, Over(dims, keepdim), "sum", term, b.dtype)
    added = reduce_dims(b, x, Over(dims, keepdim), "sum", term, wide, part="sum")
    if ord == 2:
        return b.result(lambda *i: s.call("sqrt", load(added, i)))
    return b.result(lambda *i: s.op("pow", load(added, i), 1 / ord))


def dist(b: Builder, x: Tensor, y: Tensor, p: float = 2) -> Tensor:
    """The p-norm of the difference."""
    wide = b.dtype.compute
    shape = broadcast_shape(x.shape, y.shape)
    apart = b.emit(
        shape, wide, lambda *i: s.sub(element(x, i, wide), element(y, i, wide)), part="difference"
    )
    return vector_norm(b, apart, p)


def norm(
    b: Builder,
    x: Tensor,
    p: float | None = 2,
    dim: Dims = None,
    keepdim: bool = False,
    **_: object,
) -> Tensor:
    return vector_norm(b, x, 2 if p is None else p, dim, keepdim)


LOWERINGS: Mapping[str, Lowering] = {
    "aten.sum": total,
    "aten.mean": mean,
    "aten.prod": product,
    "aten.amax": _extreme("max"),
    "aten.amin": _extreme("min"),
    "aten.max.default": _extreme("max"),
    "aten.min.default": _extreme("min"),
    "aten.max.dim": _extreme_with_index("max"),
    "aten.min.dim": _extreme_with_index("min"),
    "aten.argmax": _extreme_index("argmax"),
    "aten.argmin": _extreme_index("argmin"),
    "aten.aminmax": aminmax,
    "aten.any": _logical("any"),
    "aten.all": _logical("all"),
    "aten._is_any_true": _logical("any"),
    "aten._is_all_true": _logical("all"),
    "aten.count_nonzero": count_nonzero,
    "aten.var": _statistics(root=False, with_mean=False),
    "aten.std": _statistics(root=True, with_mean=False),
    "aten.var_mean": _statistics(root=False, with_mean=True),
    "aten.std_mean": _statistics(root=True, with_mean=True),
    "aten.linalg_vector_norm": vector_norm,
    "aten.dist": dist,
    "aten.norm": norm,
}
