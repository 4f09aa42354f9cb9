"""Scores that are too large for the caches are never written to memory."""

import pytest
import torch
import torch.nn.functional as F

import monotile


class Attention(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_long_sequences_need_no_workspace_for_scores(target: str) -> None:
    q, k, v = (torch.randn(1, 2, 1900, 32) for _ in range(3))
    options = monotile.Options(cache=False)
    fast = monotile.compile(Attention(), (q, k, v), target=target, options=options)
    assert fast.plan.launch.workspace_bytes < 1900 * 1900
    if target == "cpu":
        torch.testing.assert_close(fast(q, k, v), Attention()(q, k, v), rtol=1e-4, atol=1e-5)
