"""Sampling of volumes at given places."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import Builder, Unsupported, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, cast, const, idx

Lowering = Callable[..., Any]

_BILINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _reflected(v: Expr, low: float, span: float) -> Expr:
    """`v` folded back at both ends of low ... low + span."""
    if not span:
        return s.mul(v, 0.0)
    inside = s.call("abs", s.sub(v, low))
    over = s.op("fmod", inside, span)
    flips = s.call("floor", s.div(inside, span))
    even = s.eq(s.op("fmod", flips, 2.0), 0)
    return s.select(even, s.add(over, low), s.add(s.sub(span, over), low))


def _place(v: Expr, n: int, padding: int, align_corners: bool) -> Expr:
    """Where -1 ... 1 lies among `n` elements."""
    if align_corners:
        at = s.mul(s.mul(s.add(v, 1), 0.5), float(n - 1))
    else:
        at = s.mul(s.sub(s.mul(s.add(v, 1), float(n)), 1), 0.5)
    if padding == _REFLECTION:
        at = _reflected(at, 0.0, float(n - 1)) if align_corners else _reflected(at, -0.5, float(n))
    return at if padding == _ZEROS else s.minimum(s.maximum(at, 0.0), float(n - 1))


def _element(x: Tensor, lead: Sequence[Expr], at: Sequence[Expr]) -> Expr:
    """The element at whole places; 0 beyond the borders."""
    inside = s.both(
        *(s.both(s.ge(e, 0), s.le(e, float(n - 1))) for e, n in zip(at, x.shape[2:], strict=True))
    )
    held = [cast(s.select(inside, e, const(0, e.dtype)), DType.I64) for e in at]
    value = raised(x, [*lead, *held])
    return s.select(inside, value, const(0, value.dtype))


def grid_sampler_3d(
    b: Builder, x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool
) -> Tensor:
    """x[n, c] at the places grid[n, ..., :]; the last of a place's coordinates is that of the first dimension."""
    if mode not in (_BILINEAR, _NEAREST):
        raise Unsupported(f"interpolation_mode={mode}")
    space = x.shape[2:]
    rank = len(space)
    if 0 in x.shape:
        raise Unsupported("nothing to sample")
    places = [
        b.emit(
            grid.shape[:-1],
            grid.dtype.compute,
            lambda *i, k=k: _place(
                raised(grid, [*i, idx(rank - 1 - k)]), space[k], padding, align_corners
            ),
            part=f"place{k}",
        )
        for k in range(rank)
    ]

    def body(n: Expr, c: Expr, *i: Expr) -> Expr:
        at = [load(p, [n, *i]) for p in places]
        if mode == _NEAREST:
            return _element(x, [n, c], [s.call("round", e) for e in at])
        low = [s.call("floor", e) for e in at]
        total: Expr | None = None
        for corner in itertools.product((0, 1), repeat=rank):
            corners = [s.add(e, float(k)) if k else e for e, k in zip(low, corner, strict=True)]
            value = _element(x, [n, c], corners)
            for e, f, k in zip(at, low, corner, strict=True):
                part = s.sub(e, f)
                value = s.mul(value, part if k else s.sub(1, part))
            total = value if total is None else s.add(total, value)
        assert total is not None
        return total

    return b.result(body)


LOWERINGS: Mapping[str, Lowering] = {"aten.grid_sampler_3d": grid_sampler_3d}
