"""A model with assertions, outside a test module: pytest rewrites those of tests."""

import torch
from torch import nn


class Asserts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.abs()
        assert (y >= 0).all(), "no number"
        assert bool((x < 100).all())
        return y.sqrt()
