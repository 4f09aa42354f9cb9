"""Streamed weights that the sum goes across, x @ w, on the emulator against PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from monotile.kernels.gemv.method import GemvColumns
from monotile.plan.nodes import Plan
from monotile.plan.walk import stages_in
from tests.codegen.emulate import COMPILER
from tests.codegen.test_gemv_emulated import check
from tests.conftest import wide

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")


class Across(nn.Module):
    """A product with a matrix [k, n], as GPT-2 has them."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(k, n) / k**0.5),
            nn.Parameter(torch.rand(n)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


class Block(nn.Module):
    """A decoder's layer without its attention."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), Across(width, inner), Across(inner, width)  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))


def across(plan: Plan) -> list[GemvColumns]:
    """The methods of all steps that stream so."""
    steps = (s for stage in stages_in(plan.body) for s in stage.steps)
    return [s.method for s in steps if isinstance(s.method, GemvColumns)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, wide(torch.bfloat16)])
def test_layers(dtype: torch.dtype) -> None:
    """Normalisations are each worker's own, and rows that each thread takes a part of."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(128, 512) for _ in range(3)), nn.Linear(128, 331)).to(dtype)
    fast = check(model.eval(), torch.randn(1, 128).to(dtype))
    assert len(across(fast.plan)) == 2
    assert any(stage.everywhere for stage in stages_in(fast.plan.body))


@pytest.mark.parametrize(
    ("k", "n", "vectors"),
    [
        (768, 72, 1),  # three vectors of a row a task, rows that no thread count divides
        wide(3072, 16, 1),
        (96, 1000, 3),  # the last task lacks columns
        (200, 520, 8),
        wide(64, 1304, 1),  # rows of more vectors than lanes: copies of their own
        (48, 2200, 2),
    ],
)
def test_shapes(k: int, n: int, vectors: int) -> None:
    torch.manual_seed(1)
    fast = check(Across(k, n).half().eval(), torch.randn(vectors, k).half(), workers=2)
    assert across(fast.plan)


def test_rows_that_are_no_whole_vectors_do_not_stream() -> None:
    torch.manual_seed(2)
    fast = check(Across(256, 75).half().eval(), torch.randn(1, 256).half())
    assert not across(fast.plan)
