"""Attention over a cache of codes on a GPU."""

import pytest
import torch

import monotile
from monotile.kernels.attention.method import Attend
from monotile.plan.walk import stages_in
from tests.codegen.test_packed_cache_emulated import Cached
from tests.models.accuracy import error, exact

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("queries", [1, 5, 70])
@pytest.mark.parametrize("kind", ["int8", "float8"])
@torch.no_grad()
def test_codes(kind: str, queries: int) -> None:
    """A few positions, and nearly all of them."""
    model = Cached(kind, 32, 8, 64, 4096).eval().cuda()
    x = torch.randn(1, queries, 48 * 64, dtype=torch.float16, device="cuda")
    at = torch.arange(queries, device="cuda")
    fast = monotile.compile(model, (x, at))
    methods = [s.method for stage in stages_in(fast.plan.body) for s in stage.steps]
    assert any(isinstance(m, Attend) for m in methods)
    for first in (100, 3900):
        before = {n: b.clone() for n, b in model.named_buffers()}
        found = fast(x, at + first)
        after = {n: b.clone() for n, b in model.named_buffers()}
        model.load_state_dict(before)
        right = exact(model, (x, at + first))
        model.load_state_dict(before)
        assert error(found, right) <= 1.5 * error(model(x, at + first), right)
        for name, b in model.named_buffers():
            same = b.view(torch.uint8) == after[name].view(torch.uint8)
            assert same.float().mean() > 0.999, name  # what lies halfway may be rounded either way
