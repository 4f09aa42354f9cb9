"""Weights that have two of each four values, as sparse tensor cores take them, on the emulator against PyTorch."""

import itertools

import pytest
import torch
from torch import nn

import monotile
from monotile.choice.spec import Value
from monotile.kernels.matmul.method import Matmul
from monotile.plan.walk import stages_in
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.codegen.variants import Numbered, product_by
from tests.models.accuracy import error, exact

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")


def _is_sparse(method: Value) -> bool:
    match method:
        case {"right": {"copy": "sparse"}}:
            return True
        case _:
            return False


def sparse(number: int) -> Numbered:
    """The `number`-th of their blocks."""
    return product_by(_is_sparse, number)


def packed(*sizes: int, dtype: torch.dtype = torch.float16) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for k, n in itertools.pairwise(sizes):
        layers += [nn.Linear(k, n, dtype=dtype), nn.GELU()]
    return monotile.pack(nn.Sequential(*layers), "2:4", inplace=True).eval().requires_grad_(False)


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("rows", [1, 5, 40, 130])
def test_blocks(rows: int, number: int) -> None:
    """Columns that do not fill a block, and rings of which chunks are used again."""
    model = packed(256, 200, dtype=(torch.float16, torch.bfloat16)[number % 2])
    x = torch.randn(rows, 256, dtype=(torch.float16, torch.bfloat16)[number % 2])
    fast = Emulated(model, (x,), chooser=sparse(5 * number))
    methods = [s.method for stage in stages_in(fast.plan.body) for s in stage.steps]
    assert any(isinstance(m, Matmul) and m.sparse for m in methods)
    right = exact(model, (x,))
    assert error(fast(x, seed=number)[0], right) <= 1.5 * error(model(x), right)


@pytest.mark.parametrize("number", [0, 11, 30])
def test_long_sums(number: int) -> None:
    """More chunks than a warp holds the places of, also where each slice has some."""
    model = packed(1344, 136)
    x = torch.randn(24, 1344, dtype=torch.float16)
    fast = Emulated(model, (x,), chooser=sparse(number))
    right = exact(model, (x,))
    assert error(fast(x, seed=number)[0], right) <= 1.5 * error(model(x), right)


@pytest.mark.parametrize("rows", [3, 70])
def test_layers_in_a_loop(rows: int) -> None:
    """What is rolled reads a table of such weights."""
    model = packed(128, 128, 128, 128)
    x = torch.randn(rows, 128, dtype=torch.float16)
    fast = Emulated(model, (x,), chooser=sparse(0))
    methods = [s.method for stage in stages_in(fast.plan.body) for s in stage.steps]
    assert any(isinstance(m, Matmul) and m.sparse for m in methods)
    right = exact(model, (x,))
    assert error(fast(x)[0], right) <= 1.5 * error(model(x), right)
