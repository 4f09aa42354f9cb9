"""Interpolation with antialiasing: every output element is a weighted mean of input elements under a filter."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from monotile.frontends.builder import Builder, Unsupported, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.resampling import Factors, factors_of, ratio
from monotile.frontends.torch.lower.views import along
from monotile.ir.expr import Expr, Tensor

Lowering = Callable[..., Any]
Filter = Callable[[np.ndarray], np.ndarray]


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(x: np.ndarray) -> np.ndarray:
    """Keys' filter with a = -0.5."""
    x = np.abs(x)
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


def _taps(n: int, m: int, step: float, reach: int, of: Filter) -> tuple[np.ndarray, np.ndarray]:
    """For each of `m` output elements, the first of the `n` input elements that it is computed from, and their weights, [m, taps].

    step: input elements per output element, by which the filter of `reach` elements to each side is stretched.
    """
    stretch = max(step, 1.0)
    centre = step * (np.arange(m) + 0.5)
    first = np.maximum((centre - reach * stretch + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + reach * stretch + 0.5).astype(np.int64), n)
    count = min(math.ceil(reach * stretch) * 2 + 1, n)
    first = np.minimum(first, n - count)  # what is before has the weight 0
    at = first[:, None] + np.arange(count)
    weights = of((at - centre[:, None] + 0.5) / stretch) * (at < last[:, None])
    return first, weights / weights.sum(1, keepdims=True)


def _filtered(reach: int, of: Filter) -> Lowering:
    def lower(
        b: Builder, x: Tensor, output_size: object, align_corners: bool, *given: Factors
    ) -> Tensor:
        if not b.dtype.is_float:
            raise Unsupported("of integers")
        factors = factors_of(2, given)
        lead = len(x.shape) - 2
        wide = x.dtype.compute
        for d, factor in ((lead + 1, factors[1]), (lead, factors[0])):
            n, m = x.shape[d], b.shape[d]
            step = ((n - 1) / (m - 1) if m > 1 else 0.0) if align_corners else ratio(n, m, factor)
            first, weights = _taps(n, m, step, reach, of)
            starts, shares = b.constant(first), b.constant(weights.astype(wide.numpy))

            def term(
                *axes: Expr,
                x: Tensor = x,
                d: int = d,
                starts: Tensor = starts,
                shares: Tensor = shares,
            ) -> Expr:
                *i, k = axes
                place = s.add(load(starts, [i[d]]), k)
                value = raised(x, along(i, d, lambda _: place))
                return s.mul(value, load(shares, [i[d], k]))

            shape = (*x.shape[:d], m, *x.shape[d + 1 :])
            x = b.emit(shape, wide, term, reduce=weights.shape[1:], combiner="sum", part="sum")
        return b.result(lambda *i: load(x, i))

    return lower


LOWERINGS: Mapping[str, Lowering] = {
    "aten._upsample_bilinear2d_aa": _filtered(1, _triangle),
    "aten._upsample_bicubic2d_aa": _filtered(2, _cubic),
    "aten._upsample_lanczos2d_aa": _filtered(3, _lanczos),
}
