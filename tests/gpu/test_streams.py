"""Streamed weights on a GPU: more than its last-level cache holds, in layers, with normalisations in between."""

import pytest
import torch

import monotile
from monotile.kernels.gemv.method import Gemv
from monotile.plan.walk import stages_in
from tests.codegen.test_gemv_emulated import Network
from tests.models.accuracy import error, exact

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("vectors", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_small_streams(dtype: torch.dtype, vectors: int) -> None:
    torch.manual_seed(0)
    model = Network(3, 2048, 3072, 5001).to(dtype).eval()
    x = torch.randn(vectors, 2048).to(dtype)
    right = exact(model, (x,))
    with torch.no_grad():
        theirs = error(model(x), right)
    fast = monotile.compile(model.cuda(), (x.cuda(),))
    steps = [s for stage in stages_in(fast.plan.body) for s in stage.steps]
    assert any(isinstance(s.method, Gemv) for s in steps)
    for _ in range(3):
        found = error(fast(x.cuda()).cpu(), right)
        assert found <= (1e-5 if dtype is torch.float32 else 1.5 * theirs)
