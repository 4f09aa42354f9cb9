"""Attention's probabilities alone (Welder's case, Shi et al., OSDI 2023): a product of queries and keys, a mask and a softmax."""

import torch
from torch import Tensor, nn


class Scores(nn.Module):
    def forward(self, q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        """[batch, heads, queries, keys]. q, k: [batch, heads, tokens, width]. mask: [batch, 1, 1, keys], added."""
        return ((q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5 + mask).softmax(-1)


def scores(
    dtype: torch.dtype = torch.float16, *, batch: int = 64, heads: int = 12, tokens: int = 128, width: int = 64
) -> tuple[nn.Module, tuple[Tensor, ...]]:  # fmt: skip
    torch.manual_seed(0)
    q, k = (torch.randn(batch, heads, tokens, width).to(dtype) for _ in range(2))
    lengths = torch.randint(tokens // 2, tokens + 1, (batch, 1, 1, 1))
    mask = torch.where(torch.arange(tokens) < lengths, 0.0, -1e4).to(dtype)
    return Scores().eval(), (q, k, mask)
