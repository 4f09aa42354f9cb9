"""Sampling of images and volumes at given positions (`torch.nn.functional.grid_sample`)."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import Builder, Unsupported, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.resampling import cubic_weights
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, const, idx

Lowering = Callable[..., Any]
Weighted = tuple[Expr, Expr]  # an element along a dimension, and its weight

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _reflected(v: Expr, low: float, span: float) -> Expr:
    """`v` reflected at both ends of low ... low + span."""
    if span == 0:
        return s.mul(v, 0.0)
    inside = s.call("abs", s.sub(v, low))
    over = s.op("fmod", inside, span)
    flips = s.call("floor", s.div(inside, span))
    even = s.eq(s.op("fmod", flips, 2.0), 0)
    return s.select(even, s.add(over, low), s.add(s.sub(span, over), low))


def _place(v: Expr, n: int, align_corners: bool) -> Expr:
    """The position of a coordinate in -1 ... 1 among `n` elements."""
    if align_corners:
        return s.mul(s.mul(s.add(v, 1), 0.5), n - 1)
    return s.mul(s.sub(s.mul(s.add(v, 1), n), 1), 0.5)


def _within(at: Expr, n: int, padding: int, align_corners: bool) -> Expr:
    """The position among `n` elements for `at`, which may be beyond the borders; NaN is clamped to the first, as in PyTorch."""
    if padding == _ZEROS:
        return at
    if padding == _REFLECTION:
        at = _reflected(at, 0.0, n - 1) if align_corners else _reflected(at, -0.5, n)
    return s.minimum(s.select(s.gt(at, 0), at, 0.0), n - 1)


def _element(x: Tensor, lead: Sequence[Expr], at: Sequence[Expr]) -> Expr:
    """The element at an integer position; 0 beyond the borders."""
    inside = s.both(
        *(s.both(s.ge(e, 0), s.le(e, n - 1)) for e, n in zip(at, x.shape[2:], strict=True))
    )
    held = [cast(s.select(inside, e, const(0, e.dtype)), DType.I64) for e in at]
    value = raised(x, [*lead, *held])
    return s.select(inside, value, const(0, value.dtype))


def _linear(at: Expr) -> list[Weighted]:
    low = s.call("floor", at)
    share = s.sub(at, low)
    return [(low, s.sub(1, share)), (s.add(low, 1), share)]


def _cubic(at: Expr, n: int, padding: int, align_corners: bool) -> list[Weighted]:
    """Bicubic interpolation; each of the four elements may be beyond the borders."""
    low = s.call("floor", at)
    near = [_within(s.add(low, k), n, padding, align_corners) for k in (-1, 0, 1, 2)]
    return list(zip(near, cubic_weights(s.sub(at, low)), strict=True))


def grid_sampler(
    b: Builder, x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool
) -> Tensor:
    """x[n, c] at the positions grid[n, ..., :], whose last coordinate is that of the first dimension."""
    space = x.shape[2:]
    rank = len(space)
    if mode == _BICUBIC and rank != 2:
        raise Unsupported(f"interpolation_mode={mode}")
    if 0 in x.shape:
        raise Unsupported("nothing to sample")

    def place(k: int, i: Sequence[Expr]) -> Expr:
        at = _place(raised(grid, [*i, idx(rank - 1 - k)]), space[k], align_corners)
        return at if mode == _BICUBIC else _within(at, space[k], padding, align_corners)

    wide = grid.dtype.compute
    places = [
        b.emit(grid.shape[:-1], wide, lambda *i, k=k: place(k, i), part=f"place{k}")
        for k in range(rank)
    ]

    def body(n: Expr, c: Expr, *i: Expr) -> Expr:
        at = [load(p, [n, *i]) for p in places]
        if mode == _NEAREST:
            return _element(x, [n, c], [s.call("round", e) for e in at])
        if mode == _BILINEAR:
            return sampled(x, [n, c], at)
        return _weighted(x, [n, c], [_cubic(e, m, padding, align_corners) for e, m in zip(at, space, strict=True)])  # fmt: skip

    return b.result(body)


def sampled(x: Tensor, lead: Sequence[Expr], at: Sequence[Expr]) -> Expr:
    """Linear interpolation of x[lead] at a position, with zeros beyond the borders."""
    return _weighted(x, lead, list(map(_linear, at)))


def _weighted(x: Tensor, lead: Sequence[Expr], near: Sequence[Sequence[Weighted]]) -> Expr:
    """The sum of the elements of x[lead] at all combinations of positions. near: these along each dimension."""
    terms: list[Expr] = []
    for corner in itertools.product(*near):
        value = _element(x, lead, [e for e, _ in corner])
        terms.append(s.mul(value, _product([w for _, w in corner])))
    return functools.reduce(s.add, terms)


def _product(weights: Sequence[Expr]) -> Expr:
    total = weights[0]
    for w in weights[1:]:
        total = s.mul(total, w)
    return total


LOWERINGS: Mapping[str, Lowering] = {
    f"aten.{name}": grid_sampler for name in ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
}
