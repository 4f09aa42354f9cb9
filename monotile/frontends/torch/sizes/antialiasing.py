"""Interpolation with antialiasing from or to symbolic sizes, in terms of other operators.

The taps of an output element and their weights depend on both sizes. As tensors [outputs, inputs] they are computed in the call; for sizes that are
numbers they are constants (`lower/antialias.py`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from monotile.frontends.torch.loops.stacked import is_dynamic

Filter = Callable[[torch.Tensor], torch.Tensor]


def _triangle(x: torch.Tensor) -> torch.Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: torch.Tensor) -> torch.Tensor:
    """Keys' filter with a = -0.5."""
    x = x.abs()
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def _lanczos(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs() < 3, torch.sinc(x) * torch.sinc(x / 3), 0.0)


def _weights(
    n: Any, m: Any, step: torch.Tensor, reach: int, of: Filter
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights [m, n] of `n` input elements for each of `m` output elements, and which of them are taps.

    step: input elements per output element, by which the filter of `reach` elements to each side is stretched.
    """
    stretch = step.clamp(min=1)
    centre = (step * (torch.arange(m, device=step.device) + 0.5)).unsqueeze(1)
    at = torch.arange(n, device=step.device)
    first = (centre - reach * stretch + 0.5).long()
    last = (centre + reach * stretch + 0.5).long()
    taps = (at >= first) & (at < last)
    weights = torch.where(taps, of((at - centre + 0.5) / stretch), 0.0)
    return weights / weights.sum(1, keepdim=True), taps


def _step(n: Any, m: Any, factor: float | None, align_corners: bool, like: torch.Tensor) -> torch.Tensor:  # fmt: skip
    """Input elements per output element, of the type of `like`."""
    inputs, outputs = like.new_zeros(()) + n, like.new_zeros(()) + m
    if align_corners:
        return torch.where(outputs > 1, (inputs - 1) / (outputs - 1).clamp(min=1), 0.0)
    return inputs / outputs if not factor else like.new_zeros(()) + 1.0 / factor


def antialiased(
    x: torch.Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> torch.Tensor | None:  # fmt: skip
    """`F.interpolate` of images with antialiasing; None where all sizes are numbers."""
    if not antialias or mode not in _FILTERS or x.ndim != 4 or not x.is_floating_point():
        return None
    factors = None if scale_factor is None else _two(scale_factor)
    if size is None:
        size = [math.floor(n * f) for n, f in zip(x.shape[-2:], factors or (), strict=True)]
    size = _two(size)
    if not any(map(is_dynamic, (*x.shape[-2:], *size))):
        return None
    known = (None, None) if factors is None or recompute_scale_factor else factors
    found = x if x.dtype is torch.float64 else x.float()
    for d in (-1, -2):
        step = _step(x.shape[d], size[d], known[d], bool(align_corners), found)
        weights, taps = _weights(x.shape[d], size[d], step, *_FILTERS[mode])
        read = torch.where(taps, found.movedim(d, -1).unsqueeze(-2), 0.0)
        found = (read * weights).sum(-1).movedim(-1, d)
    return found.to(x.dtype)


def _two(x: Any) -> tuple[Any, Any]:
    return (x[0], x[1]) if isinstance(x, Sequence) else (x, x)


_FILTERS: Mapping[str, tuple[int, Filter]] = {
    "bilinear": (1, _triangle),
    "bicubic": (2, _cubic),
    "lanczos": (3, _lanczos),
}
