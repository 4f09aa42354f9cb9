"""Converts between PyTorch's tensors and the pointers of a launch."""

from collections.abc import Callable

import numpy as np
import torch

from monotile.ir.dtype import DType
from monotile.targets.cuda.streams import current_gpu

ALIGNMENT = 16  # bytes; every pointer of a launch is a multiple of it


def torch_dtype(dtype: DType) -> torch.dtype:
    found = getattr(torch, dtype.value)
    assert isinstance(found, torch.dtype)
    return found


def from_numpy(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> torch.Tensor:
    """A new tensor with the array's values; bfloat16 and 8-bit floats are converted by ml_dtypes."""
    array = np.array(array, order="C", copy=True)
    dtype = DType.from_numpy(array.dtype)
    if not dtype.is_numpys:
        bits = array.view(np.int16 if dtype.itemsize == 2 else np.int8)
        return torch.from_numpy(bits).view(torch_dtype(dtype))
    return torch.from_numpy(array)


EmptyStrided = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


def fast_empty_strided(device: torch.device) -> EmptyStrided:
    """`torch.empty_strided` on `device`, by Inductor's faster function if this PyTorch has it (a third of the time)."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)  # pyright: ignore[reportPrivateUsage]
    short: EmptyStrided | None = getattr(guards, f"_empty_strided_{device.type}", None)

    def full(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    def on_gpu(
        shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        # The faster function only allocates on the current GPU.
        make = short if short and current_gpu() == device.index else full
        return make(shape, strides, dtype)

    if short is None:
        return full
    return on_gpu if device.type == "cuda" else short


def host_tensor(
    shape: tuple[int, ...], fill: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A tensor in host memory that a kernel on `device` can access as well: for a GPU page-locked, with one address for both."""
    return torch.full(shape, fill, dtype=dtype, device="cpu", pin_memory=device.type == "cuda")


def kernel_readable(x: torch.Tensor) -> torch.Tensor:
    """`x` if the kernel can read it through its pointer (contiguous, aligned, no lazy negation or conjugation), else a copy."""
    x = x.resolve_neg().contiguous()
    return x.clone() if x.data_ptr() % ALIGNMENT else x


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether both are the same tensor, or equal."""
    known = x is y or (x.data_ptr() == y.data_ptr() and x.stride() == y.stride())
    return known or torch.equal(x, y)
