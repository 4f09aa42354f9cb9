"""Fourier transforms of float16 on the CPU, while a model is traced.

PyTorch has them on CUDA alone, with results of complex32. A model for a GPU is traced with tensors of the CPU as well: there the transform is
one of float32 whose result is rounded, as the kernel computes it on all devices.
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

_NAMES = tuple(
    f"{kind}{dims}"
    for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    for dims in ("", "2", "n")
)
_WIDE = {torch.float16: torch.float32, torch.complex32: torch.complex64}
_HALF = {wide: half for half, wide in _WIDE.items()}


_TRANSFORMS = frozenset(
    (
        *(getattr(torch.fft, name) for name in _NAMES),
        *(getattr(owner, name) for owner in (torch, torch.Tensor) for name in ("stft", "istft")),
    )
)


def _transform(func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    if func not in _TRANSFORMS or not any(map(_is_half, pytree.tree_leaves((args, named)))):
        return func(*args, **named)
    args, named = pytree.tree_map(_wide, (args, named))
    found = func(*args, **named)
    return found.to(_HALF[found.dtype])


# For `FunctionOverrides`: the CPU has them.
HALF_FOURIER = {f.__name__: _transform for f in _TRANSFORMS}


def _is_half(x: Any) -> bool:
    return isinstance(x, FakeTensor) and x.device.type == "cpu" and x.dtype in _WIDE


def _wide(x: Any) -> Any:
    return x.to(_WIDE[x.dtype]) if _is_half(x) else x
