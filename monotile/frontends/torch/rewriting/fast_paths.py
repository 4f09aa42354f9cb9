"""Decompositions of PyTorch's fused inference operators (whole layers) into operators that have lowerings."""

import math
from typing import Any

import torch
import torch.nn.functional as F

aten = torch.ops.aten


def _masked(scores: torch.Tensor, mask: torch.Tensor, mask_type: int | None) -> torch.Tensor:
    """mask: nonzero where attention is masked; [query, key] (type 0), [batch, key] (1) or all four axes (2)."""
    if mask_type == 1:
        mask = mask[:, None, None, :]
    return scores.masked_fill(mask.to(torch.bool), -math.inf)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    q, k, v = (
        F.linear(x, w, b).unflatten(-1, (num_head, -1)).transpose(1, 2)
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    scores = (q / math.sqrt(embed_dim // num_head)) @ k.transpose(-2, -1)
    if mask is not None:
        scores = _masked(scores, mask, mask_type)
    shares = scores.softmax(-1)
    out = F.linear((shares @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return out, out.new_empty(0)
    return out, shares.mean(1) if average_attn_weights else shares


def _encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    def attend(x: torch.Tensor) -> torch.Tensor:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _attention(
            x, x, x, embed_dim, num_heads, *projections, mask, False, False, mask_type
        )[0]

    def feed(x: torch.Tensor) -> torch.Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        inner = F.gelu(inner) if use_gelu else F.relu(inner)
        return F.linear(inner, ffn_weight_2, ffn_bias_2)

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(norm_1(src))
        return x + feed(norm_2(x))
    x = norm_1(src + attend(src))
    return norm_2(x + feed(x))


def _chunked_loss(
    input: torch.Tensor,
    linear_weight: torch.Tensor,
    target: torch.Tensor,
    linear_bias: torch.Tensor | None,
    weight: torch.Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    *rest: object,
) -> Any:
    """`F.linear_cross_entropy`; its gradient results are empty in inference."""
    if any(rest[-3:]) or input.dtype != linear_weight.dtype:
        return NotImplemented
    logits = F.linear(input, linear_weight, linear_bias)
    loss = F.cross_entropy(
        logits,
        target,
        weight,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )
    return loss, *(input.new_empty(0, 0) for _ in range(2)), input.new_empty(0)


def _chunked_losses(
    input: torch.Tensor,
    linear_weight: torch.Tensor,
    target: torch.Tensor,
    linear_bias: torch.Tensor | None,
    weight: torch.Tensor | None,
    ignore_index: int,
    *_: object,
) -> Any:
    if input.dtype != linear_weight.dtype:
        return NotImplemented
    logits = F.linear(input, linear_weight, linear_bias)
    return F.cross_entropy(logits, target, weight, reduction="none", ignore_index=ignore_index)


_LAYERS = {
    aten._native_multi_head_attention.default: _attention,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}
# Operators that PyTorch registers lazily.
_LOSSES = {
    "_linear_cross_entropy_batch_chunked": _chunked_loss,
    "_linear_cross_entropy_batch_chunked_no_reduction": _chunked_losses,
}


def decompositions() -> dict[Any, Any]:
    """The decomposition of each operator; NotImplemented for arguments that it does not cover."""
    known = torch.ops.torch_nn
    losses = {getattr(known, k).default: f for k, f in _LOSSES.items() if hasattr(known, k)}
    return {**_LAYERS, **losses}
