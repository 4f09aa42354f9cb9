"""Attention over keys and values that a cache holds as codes, on the emulator against PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from monotile.kernels.attention.method import Attend
from monotile.plan.walk import stages_in
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.codegen.variants import Numbered
from tests.models.accuracy import error, exact

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")


class Cached(nn.Module):
    """Attention of new tokens over all so far, of which several heads of queries share keys. A cache has int8 codes with a scale for each position
    and head, or float8."""

    def __init__(self, kind: str, heads: int, shared: int, width: int, capacity: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.heads, self.shared, self.width = kind, heads, shared, width
        self.capacity, shape = capacity, (1, shared, capacity, width)
        for name in ("keys", "values"):
            x = torch.randn(shape)
            codes = x.to(torch.float8_e4m3fn) if kind == "float8" else (x * 32).round().clamp(-127, 127).to(torch.int8)  # fmt: skip
            self.register_buffer(name, codes)
            self.register_buffer(f"{name}_scale", 0.02 + torch.rand(*shape[:3], 1).half() / 50)

    def put(self, name: str, x: Tensor, at: Tensor) -> Tensor:
        codes, scale = self.get_buffer(name), self.get_buffer(f"{name}_scale")
        if self.kind == "float8":
            codes[:, :, at] = x.to(codes.dtype)
            return codes.to(x.dtype)
        own = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-6)
        scale.index_copy_(2, at, own)
        codes.index_copy_(2, at, (x / own).round().to(torch.int8))
        return codes.to(x.dtype) * scale

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        sizes = [n * self.width for n in (self.heads, self.shared, self.shared)]
        q, k, v = (y.unflatten(-1, (-1, self.width)).transpose(1, 2) for y in x.split(sizes, -1))
        k, v = self.put("keys", k, at), self.put("values", v, at)
        seen = torch.arange(self.capacity, device=x.device) <= at[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)


@pytest.mark.parametrize("queries", [1, 3, 20])
@pytest.mark.parametrize("kind", ["int8", "float8"])
def test_codes(kind: str, queries: int) -> None:
    model = Cached(kind, 8, 2, 64, 384).eval()
    x = torch.randn(1, queries, 12 * 64, dtype=torch.float16)
    at = torch.arange(queries) + 300
    before = {n: b.clone() for n, b in model.named_buffers()}
    parts = Numbered("split keys", lambda v: isinstance(v, dict) and bool(v["streamed"]), 0)
    fast = Emulated(model, (x, at), workers=6, chooser=parts)
    methods = [s.method for stage in stages_in(fast.plan.body) for s in stage.steps]
    assert any(isinstance(m, Attend) and m.direct == (queries * 4 <= 32) for m in methods)
    found = fast(x, at)[0]
    right = exact(model, (x, at))
    model.load_state_dict(before)
    assert error(found, right) <= 1.5 * error(model(x, at), right)
