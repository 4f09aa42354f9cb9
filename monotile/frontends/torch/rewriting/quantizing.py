"""Decompositions of the operators that quantise and dequantise (`quantized_decomposed`, as PT2E writes them, and torchao's).

They are found by name in the graph: where they are not, neither library is needed. Those whose own implementation reads a number off a
tensor are written anew here, with its rounding; the others are decomposed by their implementation.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch._C import DispatchKey
from torch._ops import OpOverload

_OWN = "CompositeExplicitAutograd"


def decompositions_in(graph_module: fx.GraphModule) -> dict[Any, Callable[..., Any]]:
    """The decomposition of each of these operators that the graph has."""
    graphs = [m.graph for m in graph_module.modules() if isinstance(m, fx.GraphModule)]
    found = {n.target for g in graphs for n in g.nodes if isinstance(n.target, OpOverload)}
    return {op: f for op in found if (f := _decomposition(op)) is not None}


def _decomposition(op: OpOverload) -> Callable[..., Any] | None:
    namespace, _, name = str(op).removesuffix(".default").partition(".")
    ours = namespace == "quantized_decomposed" or name.endswith("_non_decomposed")
    if namespace not in ("quantized_decomposed", "torchao") or not ours:
        return None
    if name in _WRITTEN:
        return _WRITTEN[name]
    key = getattr(DispatchKey, _OWN)
    if not op.has_kernel_for_dispatch_key(key):
        return None
    return partial(op._op_dk, key)  # pyright: ignore[reportPrivateUsage]


def quantize(
    input: Tensor, scale: Tensor, zero_point: Tensor, quant_min: Any, quant_max: Any, dtype: Any
) -> Tensor:
    """With one scale and one zero, both in tensors: the reciprocal is taken in float64, all else is in float32."""
    inverse = (1.0 / scale.reshape(()).double()).float()
    codes = torch.round(input.float() * inverse) + zero_point.reshape(()).float()
    ends = (v.reshape(()).float() if isinstance(v, Tensor) else v for v in (quant_min, quant_max))
    return torch.clamp(codes, *ends).to(dtype)


def dequantize(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: Any,
    quant_max: Any,
    dtype: Any,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """The inverse, rounded to the result's type after each step."""
    out = out_dtype or torch.float32
    centred = (input.to(out).float() - zero_point.reshape(()).float()).to(out)
    return (centred.float() * scale.reshape(()).float()).to(out)


def choose(
    input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: Any
) -> tuple[Tensor, Tensor]:
    """Scale and zero for all of `input`, nought included."""
    least, most = input.amin().clamp(max=0), input.amax().clamp(min=0)
    scale = _at_least((most - least) / float(quant_max - quant_min), eps)
    zero = quant_min - torch.round(least / scale).to(torch.int)
    return scale.reshape(1).double(), zero.clamp(quant_min, quant_max).reshape(1).long()


def choose_symmetric(
    input: Tensor, quant_min: int, quant_max: int, eps: float, dtype: Any
) -> tuple[Tensor, Tensor]:
    """Scale and a zero in the middle."""
    least, most = input.amin().clamp(max=0), input.amax().clamp(min=0)
    scale = _at_least(torch.maximum(-least, most) / (float(quant_max - quant_min) / 2), eps)
    zero = torch.full((1,), 128 if dtype is torch.uint8 else 0, device=input.device)
    return scale.reshape(1).double(), zero


def _at_least(scale: Tensor, eps: float) -> Tensor:
    return torch.maximum(scale.float(), torch.full((), eps, device=scale.device))


def quantize_groups(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    group_size: int = 128,
) -> Tensor:
    """Of a matrix, along its rows."""
    if group_size > input.shape[-1] and scales.shape[-1] == 1:
        group_size = input.shape[-1]
    scaled = input.reshape(-1, group_size).mul(1.0 / scales.reshape(-1, 1))
    codes = scaled.add(zero_points.reshape(-1, 1)).round().clamp(quant_min, quant_max)
    return codes.to(dtype).reshape(input.shape)


_WRITTEN: dict[str, Callable[..., Any]] = {
    "quantize_per_tensor.tensor": quantize,
    "quantize_per_tensor.tensor2": quantize,
    "dequantize_per_tensor.tensor": dequantize,
    "dequantize_per_tensor.tensor2": dequantize,
    "choose_qparams.tensor": choose,
    "choose_qparams_symmetric.tensor": choose_symmetric,
    "quantize_per_channel_group": quantize_groups,
}
