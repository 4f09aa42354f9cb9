"""Packed weights on a GPU: streamed as codes, and taken by products of many rows."""

import itertools

import pytest
import torch
from torch import nn

import monotile
from monotile.errors import InputError
from monotile.kernels.gemv.method import GemvMma
from monotile.kernels.matmul.method import Matmul
from monotile.plan.walk import stages_in
from tests.models.accuracy import error, exact

pytestmark = pytest.mark.gpu
FORMATS = ("int8", "int4", "int4 asymmetric", "int2", "int1", "nf4", "fp8", "fp8_e5m2", "mxfp4", "mxfp8", "2:4", "8:32x64")  # fmt: skip


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
@pytest.mark.parametrize("name", FORMATS[:-2])
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


class Block(nn.Module):
    """A transformer's layer, of whose keys several heads of queries share one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.value = nn.Linear(width, width // 4), nn.Linear(width, width // 4)
        self.up, self.gate = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        q, k, v = (
            f(h).unflatten(-1, (-1, 64)).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        a = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        h = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


@pytest.mark.parametrize("tokens", [1, 70, "any"])
@torch.no_grad()
def test_two_of_four_in_layers(tokens: int | str) -> None:
    """All products of a network, in a loop over its layers, of a fixed number of tokens and of any."""
    torch.manual_seed(0)
    dense = nn.Sequential(*(Block(512) for _ in range(3))).half().cuda()
    model = monotile.pack(dense, "2:4", inplace=True).eval()
    most = tokens if isinstance(tokens, int) else 96
    x = torch.randn(2, most, 512, dtype=torch.float16, device="cuda")
    length = {1: torch.export.Dim("t", min=1, max=96)}
    fast = monotile.compile(model, (x,), dynamic_shapes=(length,) if tokens == "any" else None)
    methods = [s.method for stage in stages_in(fast.plan.body) for s in stage.steps]
    assert sum(isinstance(m, Matmul) and m.sparse for m in methods) >= 5
    for count in (most,) if tokens != "any" else (1, 17, 96):
        x = torch.randn(2, count, 512, dtype=torch.float16, device="cuda")
        right = exact(model, (x,))
        assert error(fast(x), right) <= 1.5 * error(model(x), right)
    places = model[0].query.get_buffer("positions")
    places.fill_(0b01000101)
    with pytest.raises(InputError, match="positions no longer"):
        fast(x)
