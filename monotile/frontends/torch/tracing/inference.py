"""Tensors made under `torch.inference_mode()`, which PyTorch does not trace outside it: a whole program may run under it but for the call of the
compiler, or only the checkpoint's loading."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def mode_of(tensors: Iterable[Any]) -> AbstractContextManager[object]:
    """The inference mode if one of `tensors` was made under it."""
    made = any(isinstance(x, torch.Tensor) and x.is_inference() for x in tensors)
    return torch.inference_mode() if made else nullcontext()
