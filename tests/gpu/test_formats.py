"""Packed weights on a GPU: streamed as codes, and taken by products of many rows."""

import itertools

import pytest
import torch
from torch import nn

import monotile
from monotile.kernels.gemv.method import GemvMma
from monotile.plan.walk import stages_in
from tests.models.accuracy import error, exact

pytestmark = pytest.mark.gpu
FORMATS = ("int8", "int4", "int4 asymmetric", "int2", "int1", "nf4", "fp8", "fp8_e5m2", "mxfp4", "mxfp8", "2:4")  # fmt: skip


def packed(name: str, dtype: torch.dtype, *sizes: int) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(k, n, dtype=dtype, device="cuda") for k, n in itertools.pairwise(sizes)]
    kind, _, asymmetric = name.partition(" ")
    model = monotile.pack(nn.Sequential(*layers), kind, symmetric=not asymmetric, inplace=True)
    return model.eval().requires_grad_(False)


def check(model: nn.Module, x: torch.Tensor) -> monotile.CompiledModule:
    fast = monotile.compile(model, (x,))
    for _ in range(2):
        x = torch.randn_like(x)
        right = exact(model, (x,))
        assert error(fast(x), right) <= 1.5 * error(model(x), right)
    return fast


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FORMATS[:-1])
def test_codes_stream(name: str, dtype: torch.dtype) -> None:
    """More than the last-level cache holds."""
    layers = {"int2": 12, "int1": 24, "int8": 4}.get(name, 6)
    fast = check(
        packed(name, dtype, *[8192, 6144] * (layers // 2), 8192),
        torch.randn(2, 8192, dtype=dtype, device="cuda"),
    )
    methods = [s.method for stage in stages_in(fast.plan.body) for s in stage.steps]
    assert any(isinstance(m, GemvMma) for m in methods) or name == "int1"


@pytest.mark.parametrize("rows", [1, 7, 80])
@pytest.mark.parametrize("name", FORMATS)
def test_small_layers(name: str, rows: int) -> None:
    """Less than that."""
    model = packed(name, torch.float16, 256, 384, 192)
    check(model, torch.randn(rows, 256, dtype=torch.float16, device="cuda"))
