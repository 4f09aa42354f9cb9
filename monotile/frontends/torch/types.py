"""Converts PyTorch's types to the language's."""

from collections.abc import Iterable

import ml_dtypes
import numpy as np
import torch
from torch import fx

from monotile.errors import CaptureError
from monotile.frontends.builder import Type
from monotile.frontends.torch.origin import origin
from monotile.ir.dtype import DType

DTYPES: dict[torch.dtype, DType] = {getattr(torch, t.value): t for t in DType}


def dtype_of(dtype: torch.dtype) -> DType:
    """The DType of a torch.dtype. Raises CaptureError for unsupported ones (complex, float8, ...)."""
    if dtype not in DTYPES:
        raise CaptureError(f"element type {dtype} is not supported")
    return DTYPES[dtype]


def is_static(shape: Iterable[object]) -> bool:
    """Whether every dimension is a number; a dynamic one is a SymInt."""
    return all(isinstance(n, int) for n in shape)


def type_of(x: torch.Tensor) -> Type:
    """Raises CaptureError for a shape that is not static or an element type that is not supported."""
    if not is_static(x.shape):
        raise CaptureError(
            f"the shape {tuple(x.shape)} depends on data; Monotile compiles static shapes"
        )
    return Type(tuple(x.shape), dtype_of(x.dtype))


# On a GPU, PyTorch 2.11's tracer gives their final states a wrong second dimension: [layers, 1, batch, width].
_RECURRENT = (torch.ops.aten.lstm.input, torch.ops.aten.gru.input)


def results_of(node: fx.Node) -> tuple[Type, ...]:
    """The types of the tensors that `node` returns."""
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    if node.target in _RECURRENT:
        values = [
            v.squeeze(1) if isinstance(v, torch.Tensor) and v.ndim == 4 else v for v in values
        ]
    try:
        return tuple(type_of(v) for v in values if isinstance(v, torch.Tensor))
    except CaptureError as e:
        where = origin(node.stack_trace)
        raise CaptureError(f"{node.target}: {e}" + (f", at {where}" if where else "")) from None


def to_numpy(x: torch.Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.generic]]":
    """A copy on the host; bfloat16 through ml_dtypes."""
    host = x.detach().to("cpu").contiguous()
    if host.dtype is torch.bfloat16:
        return host.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
    return host.numpy().copy()
