"""A small matrix that mixes a few planes is written as sums."""

import pytest
import torch
from torch import Tensor, nn

from monotile.analysis.contraction import contraction
from monotile.ir.program import Compute, Program, statements
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated

TOKENS = 96


class TalkingHeads(nn.Module):
    """CaiT's attention: heads are mixed before and behind the softmax."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(64, 192)
        self.before, self.behind = nn.Linear(heads, heads), nn.Linear(heads, heads)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = self.before((q @ k.transpose(-2, -1)).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        scores = self.behind(scores.softmax(-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return (scores @ v).transpose(1, 2).reshape(b, n, c)


class Streams(nn.Module):
    """Hyper-connections: each token has a matrix of its own for four streams."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.layer = nn.Linear(128, 16), nn.Linear(128, 128)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mix(x.mean(2)).unflatten(-1, (4, 4)).tanh()
        x = torch.einsum("bsij,bsjd->bsid", mixed, x)
        return x + self.layer(x.sum(2)).unsqueeze(2)


def products(program: Program) -> int:
    """The number of products of four or fewer terms."""
    each = (s for s in statements(program.body) if isinstance(s, Compute) and contraction(s))
    return sum(s.reduce[0].extent <= 4 for s in each)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", ["heads", "streams"])
def test_planes(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = TalkingHeads(4) if name == "heads" else Streams()
    x = torch.randn(2, TOKENS, 64) if name == "heads" else torch.randn(2, 80, 4, 128)
    run = Emulated(model.to(dtype), (x.to(dtype),), workers=8)
    assert products(run.program) == 0
    (found,) = run(x.to(dtype))
    tol = 3e-5 if dtype is torch.float32 else 5e-3
    torch.testing.assert_close(
        found.double(), model.double()(x.to(dtype).double()), rtol=tol, atol=tol
    )


def test_scores_are_planes() -> None:
    """What is between the products lies as these have it, and is one stage."""
    run = Emulated(TalkingHeads(4).half(), (torch.randn(2, TOKENS, 64).half(),), workers=8)
    mixed = [
        s.out.shape
        for s in statements(run.program.body)
        if isinstance(s, Compute) and s.out.name in ("linear_1", "linear_2")
    ]
    assert mixed == [(2, 4, TOKENS, TOKENS)] * 2
