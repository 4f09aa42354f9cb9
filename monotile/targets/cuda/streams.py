"""PyTorch's current GPU and stream, by the fastest calls that it offers."""

from collections.abc import Callable

import torch

_torch = torch._C  # pyright: ignore[reportPrivateUsage]

# What PyTorch's public functions ask once they have looked whether CUDA is initialised, which takes longer than the question.
current_gpu: Callable[[], int] = getattr(_torch, "_cuda_getDevice", torch.cuda.current_device)
capturing: Callable[[], bool] = getattr(
    _torch, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
)
