"""Scans that are so long that the totals of blocks are scanned themselves."""

import pytest
import torch
from torch import nn
from torch.export import Dim

import monotile
from monotile.config import Options
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated

OPTIONS = Options(cache=False)


class Scanned(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.cumsum(x, 1), torch.cumprod(1 + x * 1e-3, 1), torch.cumsum(x > 0, 1)


class Sums(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, 0)


def check(fast: nn.Module, n: int) -> None:
    x = torch.randn(2, n)
    for found, wanted in zip(fast(x), Scanned()(x.double()), strict=True):
        torch.testing.assert_close(found.double(), wanted.double(), rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("n", [16384, 16385, 70001])
def test_fixed(n: int) -> None:
    fast = monotile.compile(Scanned(), (torch.randn(2, n),), target="cpu", options=OPTIONS)
    check(fast, n)


def test_any_number() -> None:
    shapes = ({1: Dim("n", min=2, max=20000)},)
    fast = monotile.compile(Scanned(), (torch.randn(2, 50),), dynamic_shapes=shapes, target="cpu", options=OPTIONS)  # fmt: skip
    for n in (2, 63, 64, 65, 4096, 4097, 20000):
        check(fast, n)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_one_total_for_all_lanes() -> None:
    """What is before a block is loaded where it is used, once for all elements that a thread has of it."""
    x = torch.randint(0, 5, (20000,)).double()
    fast = Emulated(Sums(), (x,), workers=3)
    assert torch.equal(fast(x)[0], x.cumsum(0))
