"""Ten LSTM layers of width 256 over a sequence of 100, as `torch.nn.LSTM`."""

import torch


def make(
    dtype: torch.dtype = torch.float32,
    *,
    layers: int = 10,
    steps: int = 100,
    width: int = 256,
    batch: int = 1,
) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model = torch.nn.LSTM(width, width, layers).eval().to(dtype)
    return model, (torch.randn(steps, batch, width, dtype=dtype),)
