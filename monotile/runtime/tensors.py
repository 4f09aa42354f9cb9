"""Between PyTorch's tensors and the launch's pointers."""

import numpy as np
import torch

from monotile.ir.dtype import DType

ALIGNMENT = 16  # bytes; the launch's ABI promises that every pointer is a multiple of it


def torch_dtype(dtype: DType) -> torch.dtype:
    found = getattr(torch, dtype.value)
    assert isinstance(found, torch.dtype)
    return found


def from_numpy(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> torch.Tensor:
    """A tensor of its own memory with the array's values; bfloat16 comes from ml_dtypes."""
    array = np.array(array, order="C", copy=True)
    if DType.from_numpy(array.dtype) is DType.BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def plain(x: torch.Tensor) -> torch.Tensor:
    """`x` itself where the kernel can read it through its pointer, else a copy: contiguous, aligned, no lazy sign."""
    x = x.resolve_neg().contiguous()
    return x.clone() if x.data_ptr() % ALIGNMENT else x
