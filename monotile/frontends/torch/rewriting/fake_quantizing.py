"""Decompositions of the operators that round to the values of few bits, as models that are trained for quantisation do (`torch.fake_quantize_per_tensor_affine`).

As PyTorch's kernels: a division is a product with the reciprocal in float32, codes are rounded to the nearest even, and then clamped.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def fake_quantized(x: Tensor, scale: Any, zero: Any, low: int, high: int) -> tuple[Tensor, Tensor]:
    """With the mask of those that are not clamped. scale, zero: numbers, or tensors that broadcast against `x`; a zero of floats moves what is rounded."""
    scale, zero = (
        v if isinstance(v, Tensor) else torch.full((), v, dtype=t, device=x.device)
        for v, t in ((scale, torch.float32), (zero, torch.int64))
    )
    codes = x * scale.float().reciprocal()
    codes = torch.round(codes + zero) if zero.is_floating_point() else torch.round(codes) + zero
    wide = torch.promote_types(x.dtype, torch.float32)
    found = (codes.to(wide).clamp(low, high) - zero) * scale.float()
    return found.to(x.dtype), (codes >= low) & (codes <= high)


def _of_tensor(x: Tensor, scale: Tensor, zero: Tensor, enabled: Tensor, low: int, high: int) -> Any:
    found, mask = fake_quantized(x, scale.reshape(()), zero.reshape(()), low, high)
    on = enabled.reshape(()) != 0
    return torch.where(on, found, x), mask | ~on


def of_channels(x: Tensor, scale: Tensor, zero: Tensor, axis: int, low: int, high: int) -> Any:
    """`fake_quantized` with a scale and a zero for each of dimension `axis`."""
    shape = [-1 if d == axis % x.ndim else 1 for d in range(x.ndim)]
    return fake_quantized(x, scale.reshape(shape), zero.reshape(shape), low, high)


def _learnt_of_tensor(x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int, *_: Any) -> Any:
    return fake_quantized(x, scale.reshape(()), _whole(zero.reshape(()), low, high), low, high)[0]


def _learnt_of_channels(x: Tensor, scale: Tensor, zero: Tensor, axis: int, low: int, high: int, *_: Any) -> Any:  # fmt: skip
    return of_channels(x, scale, _whole(zero, low, high), axis, low, high)[0]


def _whole(zero: Tensor, low: int, high: int) -> Tensor:
    return torch.clamp(torch.floor(zero + 0.5), low, high).to(torch.int64)


FAKE_QUANTIZED: dict[Any, Callable[..., Any]] = {
    aten.fake_quantize_per_tensor_affine_cachemask.default: fake_quantized,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _of_tensor,
    aten.fake_quantize_per_channel_affine_cachemask.default: of_channels,
    aten._fake_quantize_learnable_per_tensor_affine.default: _learnt_of_tensor,
    aten._fake_quantize_learnable_per_channel_affine.default: _learnt_of_channels,
}
