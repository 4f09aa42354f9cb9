"""Softmax of scores with a few terms behind them, of which no share is read: attention with sinks."""

import copy

import pytest
import torch
from torch import nn

import monotile
from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.ir.program import Compute, Program
from monotile.kernels.attention.method import Attend
from monotile.pipeline import transform
from monotile.plan.walk import stages_in
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated

ROWS = 48


class Sinks(nn.Module):
    """shifted: the greatest is subtracted first, as GPT-OSS does. terms: sinks of a head."""

    def __init__(self, shifted: bool, terms: int = 1, heads: int = 2, wide: int = 32) -> None:
        super().__init__()
        self.shifted, self.terms, self.heads = shifted, terms, heads
        self.mixing = nn.Linear(64, 3 * heads * wide)
        self.sinks = nn.Parameter(torch.randn(heads, terms))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.mixing(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(2, 3) / 6 + mask
        sinks = self.sinks.view(1, -1, 1, self.terms).expand(b, -1, n, -1)
        every = torch.cat([scores, sinks], -1)
        if self.shifted:
            every = every - every.max(-1, keepdim=True).values
        shares = torch.softmax(every, -1, dtype=every.dtype)[..., : -self.terms]
        return (shares @ v).transpose(1, 2).flatten(2)


def given(dtype: torch.dtype, low: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A causal mask, of which one row sees no key."""
    seen = torch.arange(ROWS)[:, None] >= torch.arange(ROWS)
    seen[7] = False
    return torch.randn(1, ROWS, 64).to(dtype), torch.where(seen, 0.0, low).to(dtype)


def separated(program: Program) -> bool:
    return any(isinstance(s, Compute) and s.out.name.endswith("_keys") for s in program.body)


@pytest.mark.parametrize("terms", [1, 3, 5])
@pytest.mark.parametrize("shifted", [False, True])
def test_as_pytorch(shifted: bool, terms: int) -> None:
    torch.manual_seed(terms)
    model = Sinks(shifted, terms).eval()
    args = given(torch.float32, float("-inf"))
    found = capture(model, args)
    program, _ = transform(found.program, found.constants, Options())
    assert separated(program) is (terms < 5)
    fast = monotile.compile(model, args, target="cpu", options=Options(cache=False))
    for size in (1.0, 300.0, -300.0):
        model.sinks.data.fill_(size)
        right = copy.deepcopy(model).double()(*(x.double() for x in args))
        torch.testing.assert_close(fast(*args).double(), right, rtol=1e-5, atol=1e-6)


def test_float64_and_exact_rounding_stay() -> None:
    args = given(torch.float64, float("-inf"))
    model = Sinks(True).double().eval()
    fast = monotile.compile(model, args, target="cpu", options=Options(cache=False))
    torch.testing.assert_close(fast(*args), model(*args), rtol=1e-12, atol=1e-12)
    found = capture(Sinks(True).eval(), given(torch.float32, 0.0))
    program, _ = transform(found.program, found.constants, Options(excess_precision=False))
    assert not separated(program)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_streamed_step(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Sinks(True, heads=8, wide=64).to(dtype).eval()
    args = given(dtype, torch.finfo(dtype).min)
    fast = Emulated(model, args)
    steps = [s for stage in stages_in(fast.plan.body) for s in stage.steps]
    assert any(isinstance(s.method, Attend) for s in steps)
    right = copy.deepcopy(model).double()(*(x.double() for x in args))
    (found,), eager = fast(*args), model(*args)
    off, theirs = ((x.double() - right).norm() for x in (found, eager))
    assert off < 1.2 * theirs
