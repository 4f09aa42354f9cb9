"""Tensors created under `torch.inference_mode()`, which PyTorch cannot trace outside of it: a whole program may run under it except for the call of the
compiler, or only the loading of a checkpoint."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def mode_of(tensors: Iterable[Any]) -> AbstractContextManager[object]:
    """The inference mode if one of `tensors` was created under it."""
    made = any(isinstance(x, torch.Tensor) and x.is_inference() for x in tensors)
    return torch.inference_mode() if made else nullcontext()
