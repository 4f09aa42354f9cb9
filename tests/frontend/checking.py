"""A model with checks of its data, outside a test module: pytest rewrites assertions in those of tests."""

import torch
from torch import nn


class Checks(nn.Module):
    """asks: whether what follows is chosen by data first, in a way that is traced twice."""

    def __init__(self, asks: bool = False) -> None:
        super().__init__()
        self.asks = asks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.asks:
            kept = list[torch.Tensor]()
            if x.sum() > 0:
                kept.append(x + 1)
            else:
                kept.append(x.softmax(0).cumsum(0))
            x = kept[0]
        if x.isnan().any():
            raise ValueError("not a number")
        ordered = x.diff().min() >= 0
        if not ordered and not self.asks:
            raise ValueError(f"not in order: {tuple(x.shape)}")
        assert x[0] == x[0] and x[-1] == x[-1], "ends"  # noqa: PT018 # two questions
        if x.min() < -100 or x.max() > 100:
            raise ValueError("out of range")
        return x.sqrt()
