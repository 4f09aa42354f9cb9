"""Decompositions of operators that derivatives are computed by, where PyTorch has none."""

import math
from typing import Any

import torch
import torch.nn.functional as F

aten = torch.ops.aten
Found = torch.Tensor | None


def _convolution(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    _bias_sizes: list[int] | None,
    *sizes: Any,
) -> tuple[Found, Found, Found]:
    """sizes: stride, padding, dilation, transposed, output_padding, groups, and which of the three results are wanted."""
    stride, padding, dilation, transposed, _, groups, wanted = sizes
    other = (stride, padding, dilation)
    of_x = of_weight = None
    if wanted[0]:
        spare = [0] * len(stride) if transposed else _spare(x, grad, weight, *other)
        of_x = aten.convolution(grad, weight, None, *other, not transposed, spare, groups)
    if wanted[1]:
        pair = (grad, x) if transposed else (x, grad)
        of_weight = _of_weight(*pair, weight, other, groups)
    axes = [d for d in range(grad.ndim) if d != 1]
    return of_x, of_weight, grad.sum(axes) if wanted[2] else None


def _spare(
    x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, *other: list[int]
) -> list[int]:
    """How many places behind the last window each dimension of `x` has: the output padding of the transposed convolution."""
    return [
        n - ((m - 1) * s - 2 * p + d * (k - 1) + 1)
        for n, m, k, s, p, d in zip(
            x.shape[2:], grad.shape[2:], weight.shape[2:], *other, strict=True
        )
    ]


def _of_weight(
    x: torch.Tensor,
    grad: torch.Tensor,
    weight: torch.Tensor,
    other: tuple[list[int], list[int], list[int]],
    groups: int,
) -> torch.Tensor:
    """By what each weight is multiplied, window by window: a convolution of channels over the batch."""
    stride, padding, dilation = other
    n, channels = x.shape[:2]
    inputs = x.reshape(n, groups, channels // groups, *x.shape[2:]).movedim(0, 2)
    kernels = grad.reshape(n, groups, -1, *grad.shape[2:]).movedim(0, 2)
    each = [
        aten.convolution(a, k, None, dilation, padding, stride, False, [0] * len(stride), 1)
        for a, k in zip(inputs.unbind(0), kernels.unbind(0), strict=True)
    ]  # [input channel, output channel, ...] of each group, perhaps with places behind the last window
    found = torch.cat([e.transpose(0, 1) for e in each])
    for d, size in enumerate(weight.shape[2:], 2):
        found = found.narrow(d, 0, size)
    return found


def _avg_pool2d(
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Any:
    if ceil_mode or x.ndim != 4:
        return NotImplemented
    kh, kw = _both(kernel)
    area = divisor or kh * kw
    shares = grad / area
    if not count_include_pad and not divisor:
        ones = x.new_ones((1, 1, *x.shape[2:]))
        shares = shares / F.avg_pool2d(ones, kernel, stride, padding)
    n, c, *out = grad.shape
    columns = shares[:, :, None].expand(n, c, kh * kw, *out).reshape(n, c * kh * kw, -1)
    return aten.col2im(
        columns, x.shape[2:], (kh, kw), (1, 1), _both(padding), _both(stride or kernel)
    )


def _both(sizes: list[int]) -> list[int]:
    return sizes if len(sizes) == 2 else sizes * 2


def _adaptive_avg_pool2d(grad: torch.Tensor, x: torch.Tensor) -> Any:
    if grad.shape[-2:] != (1, 1):
        return NotImplemented
    return (grad / (x.shape[-2] * x.shape[-1])).expand_as(x)


def _cdist(
    grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, p: float, distance: torch.Tensor
) -> Any:
    if p != 2:
        return NotImplemented
    apart = a.unsqueeze(-2) - b.unsqueeze(-3)
    scale = torch.where(distance == 0, 0.0, grad / distance)
    return (scale.unsqueeze(-1) * apart).sum(-2)


def _attention(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    _logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        return NotImplemented
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * factor
    if attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(ahead, -math.inf)
    shares = scores.softmax(-1)
    of_shares = grad @ value.transpose(-2, -1)
    of_scores = shares * (of_shares - (grad * out).sum(-1, keepdim=True)) * factor
    of_query, of_key = of_scores @ key, of_scores.transpose(-2, -1) @ query
    return of_query, of_key, shares.transpose(-2, -1) @ grad


# The decomposition of each operator; NotImplemented for arguments that it does not cover.
DECOMPOSITIONS = {
    aten.convolution_backward.default: _convolution,
    aten.avg_pool2d_backward.default: _avg_pool2d,
    aten._adaptive_avg_pool2d_backward.default: _adaptive_avg_pool2d,
    aten._cdist_backward.default: _cdist,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention,
}
