"""What scores would look up one by one is stored first, and attention stays one step."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from monotile.kernels.attention.method import Attend
from monotile.plan.nodes import Stage
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.models.accuracy import error, exact

HEADS, ROWS = 3, 40


class Biased(nn.Module):
    """Attention with a bias for each distance (BEiT, LeViT, CoAtNet), from a table of [distances, heads]."""

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = nn.ParameterList(torch.randn(2 * ROWS - 1, HEADS).half() for _ in range(layers))  # fmt: skip
        place = torch.arange(ROWS)
        self.register_buffer("index", place[:, None] - place[None, :] + ROWS - 1)

    def forward(self, x: Tensor) -> Tensor:
        for table in self.tables:
            bias = table[self.index.view(-1)].view(ROWS, ROWS, HEADS)  # pyright: ignore
            mask = bias.permute(2, 0, 1).contiguous().unsqueeze(0)
            x = scaled_dot_product_attention(x, x * 0.5, x + 1, attn_mask=mask)
        return x


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("layers", [1, 3])
def test_biases_of_distances(layers: int) -> None:
    model, x = Biased(layers), torch.randn(1, HEADS, ROWS, 64).half()
    compiled = Emulated(model.requires_grad_(False), (x,))
    stages = [s for node in compiled.plan.body for s in getattr(node, "body", (node,)) if isinstance(s, Stage)]  # fmt: skip
    attends = [t for s in stages for t in s.steps if isinstance(t.method, Attend)]
    assert attends
    assert not any("looked_up" in n for t in attends for n in t.computes)
    assert any("looked_up" in n for s in stages for t in s.steps for n in t.computes)
    (got,) = compiled(x)
    assert error(got, exact(model, (x,))) < 1e-3
