"""Attention in float32, which is streamed in three passes of TF32, and heads that are too wide to be streamed."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import monotile

pytestmark = pytest.mark.gpu


class Attention(nn.Module):
    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape", [(2, 12, 197, 64), (1, 8, 1500, 64), (1, 3, 300, 128), (4, 2, 77, 40)]
)
def test_float32(shape: tuple[int, ...], causal: bool) -> None:
    model = Attention(causal=causal)
    given = [torch.randn(shape, device="cuda") for _ in range(3)]
    fast = monotile.compile(model, tuple(given))
    given = [torch.randn(shape, device="cuda") for _ in range(3)]
    right = model(*(x.double() for x in given))
    assert (fast(*given).double() - right).norm() <= 3e-6 * right.norm()


@pytest.mark.parametrize("width", [256, 512])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_wide_heads(width: int, dtype: torch.dtype) -> None:
    model = Attention(causal=False)
    given = [torch.randn(1, 2, 640, width, device="cuda", dtype=dtype) for _ in range(3)]
    fast = monotile.compile(model, tuple(given))
    right = model(*(x.double() for x in given))
    eager = (model(*given).double() - right).norm()
    assert (fast(*given).double() - right).norm() <= max(1.5 * eager, 3e-6 * right.norm())
