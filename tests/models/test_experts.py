"""Layers of experts, in transformers' forms of them, at any number of tokens."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import monotile
from monotile.plan.walk import stages_in
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.models.accuracy import error

transformers = pytest.importorskip("transformers")
mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
FORMS = ["grouped_mm", "batched_mm"]


class Layer(nn.Module):
    """A router, experts, and one result."""

    def __init__(self, form: str, experts: int = 6, width: int = 64) -> None:
        super().__init__()
        config = transformers.MixtralConfig(
            hidden_size=width,
            intermediate_size=96,
            num_local_experts=experts,
            num_experts_per_tok=2,
        )
        config._experts_implementation = form
        self.block = mixtral.MixtralSparseMoeBlock(config)
        torch.manual_seed(3)
        for p in self.parameters():
            nn.init.normal_(p, std=0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: Any = self.block(x)
        return found[0] if isinstance(found, tuple) else found


def made(form: str, dtype: torch.dtype) -> Layer:
    return Layer(form).eval().requires_grad_(False).to(dtype)


def right(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """By the loop over experts, in float64."""
    wide = made("eager", torch.float64)
    wide.load_state_dict(copy.deepcopy(layer).double().state_dict())
    return wide(x.double())


@pytest.mark.parametrize("tokens", [1, 5, 40])
@pytest.mark.parametrize("form", FORMS)
def test_on_the_cpu(form: str, tokens: int) -> None:
    layer, x = made(form, torch.float32), torch.randn(2, tokens, 64)
    fast = monotile.compile(layer, (x,), target="cpu")
    x = torch.randn(2, tokens, 64)
    assert error(fast(x), [right(layer, x)]) < 2e-5


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("form", FORMS)
def test_on_the_emulator(form: str) -> None:
    layer, x = made(form, torch.float16), torch.randn(1, 30, 64, dtype=torch.float16)
    fast = Emulated(layer, (x,), workers=12)
    names = [n for s in stages_in(fast.plan.body) for step in s.steps for n in step.computes]
    assert sum(n.endswith("in_blocks") for n in names) == 3  # rows, and two products
    x = torch.randn(1, 30, 64, dtype=torch.float16)
    assert error(fast(x)[0].double(), [right(layer, x)]) < 4e-3


@pytest.mark.parametrize("form", FORMS)
def test_open_numbers_of_tokens(form: str) -> None:
    layer = made(form, torch.float32)
    shapes = ({0: Dim("b", min=1, max=2), 1: Dim("n", min=1, max=24)},)
    fast = monotile.compile(layer, (torch.randn(2, 7, 64),), target="cpu", dynamic_shapes=shapes)
    for size in ((1, 1), (2, 24), (1, 9), (2, 3)):
        x = torch.randn(*size, 64)
        assert error(fast(x), [right(layer, x)]) < 2e-5
