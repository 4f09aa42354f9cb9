"""Converts PyTorch's types to the language's."""

import operator

import numpy as np
import torch
from torch import fx

from monotile.errors import CaptureError
from monotile.frontends.builder import Type
from monotile.frontends.torch.origin import origin
from monotile.frontends.torch.sizes.size import Shapes
from monotile.ir.dtype import DType

DTYPES: dict[torch.dtype, DType] = {getattr(torch, t.value): t for t in DType}


def dtype_of(dtype: torch.dtype) -> DType:
    """The DType of a torch.dtype. Raises CaptureError for unsupported ones (complex, unsigned int64, ...)."""
    if dtype not in DTYPES:
        raise CaptureError(f"element type {dtype} is not supported")
    return DTYPES[dtype]


def type_of(x: torch.Tensor, shapes: Shapes) -> Type:
    """Raises CaptureError for a shape that depends on data or an element type that is not supported."""
    return Type(tuple(map(shapes.size, x.shape)), dtype_of(x.dtype))


# In a graph that PyTorch 2.11 itself has made functional, final states are [layers, 1, batch, width] (`tracing/recurrent_shapes.py`).
_RECURRENT = (torch.ops.aten.lstm.input, torch.ops.aten.gru.input)


def results_of(node: fx.Node, shapes: Shapes) -> tuple[Type, ...]:
    """The types of the tensors that `node` returns. An unsupported element type of a tensor without readers becomes int64."""
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    if node.target in _RECURRENT:
        values = [
            v.squeeze(1) if isinstance(v, torch.Tensor) and v.ndim == 4 else v for v in values
        ]
    read = [n.args[1] for n in node.users if n.target is operator.getitem]
    several = isinstance(value, tuple | list)
    try:
        return tuple(
            type_of(v.long() if several and k not in read and v.dtype not in DTYPES else v, shapes)
            for k, v in enumerate(values)
            if isinstance(v, torch.Tensor)
        )
    except CaptureError as e:
        where = origin(node.stack_trace)
        raise CaptureError(f"{node.target}: {e}" + (f", at {where}" if where else "")) from None


def to_numpy(x: torch.Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.generic]]":
    """A copy on the host; bfloat16 and 8-bit floats have the dtypes of ml_dtypes."""
    host = x.detach().to("cpu").contiguous()
    dtype = DTYPES.get(host.dtype)
    if dtype is not None and not dtype.is_numpys:
        bits = host.view(torch.int16 if dtype.itemsize == 2 else torch.int8)
        return bits.numpy().view(dtype.numpy).copy()
    return host.numpy().copy()
