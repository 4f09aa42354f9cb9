"""A decoder in plain PyTorch with one projection for queries, fewer keys, and values, whose angles turn pairs of neighbours, and a cache of its own."""

import copy

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import monotile
from monotile.config import Options
from monotile.plan.streams import streams
from monotile.plan.walk import stages_in
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.codegen.test_gemv_emulated import SMALL

WIDTH, HEADS, KEYS, TOKENS, WORDS, LAYERS = 256, 8, 2, 16, 96, 2
EACH = WIDTH // HEADS
TARGET = msgspec.structs.replace(SMALL, has=msgspec.structs.replace(SMALL.has, messages=False))


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """x [1, t, heads, EACH], angles [t, EACH / 2, 2]."""
    a, b = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    cos, sin = angles[:, None].unbind(-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(3)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sizes = [WIDTH, KEYS * EACH, KEYS * EACH]
        self.qkv, self.out = nn.Linear(WIDTH, sum(self.sizes)), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("keys", torch.zeros(1, KEYS, TOKENS, EACH))
        self.register_buffer("values", torch.zeros(1, KEYS, TOKENS, EACH))
        self.keys: Tensor
        self.values: Tensor

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor, place: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).split(self.sizes, -1)
        q = turned(q.view(1, -1, HEADS, EACH), angles).transpose(1, 2)
        k = turned(k.view(1, -1, KEYS, EACH), angles).transpose(1, 2)
        self.keys[:, :, place] = k
        self.values[:, :, place] = v.view(1, -1, KEYS, EACH).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, self.keys, self.values, mask, enable_gqa=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        turns = torch.outer(torch.arange(TOKENS), 0.5 ** torch.arange(EACH // 2))
        self.register_buffer("angles", torch.stack([turns.cos(), turns.sin()], -1))
        self.register_buffer("mask", torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril())
        self.angles: Tensor
        self.mask: Tensor

    def forward(self, word: Tensor, place: Tensor) -> Tensor:
        x, mask = self.words(word), self.mask[None, None, place]
        for layer in self.layers:
            x = layer(x, self.angles[place], mask, place)
        return self.head(x)


def call(k: int) -> tuple[Tensor, Tensor]:
    return torch.tensor([[k * 7 % WORDS]]), torch.tensor([k])


@pytest.fixture
def model() -> Decoder:
    torch.manual_seed(0)
    return Decoder().eval().requires_grad_(False)


def test_tokens_on_the_cpu(model: Decoder) -> None:
    right = copy.deepcopy(model).double()
    fast = monotile.compile(model, call(0), target="cpu", options=Options(cache=False))
    for k in range(5):
        torch.testing.assert_close(fast(*call(k)), right(*call(k)).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_the_projection_s_stages_write_the_cache(model: Decoder) -> None:
    for k in range(4):
        model(*call(k))
    right = copy.deepcopy(model).double()(*call(4))
    fast = Emulated(model, call(4), 8, target=TARGET)
    writing = [
        stage
        for stage in stages_in(fast.plan.body)
        if any("index_put" in n for s in stage.steps for n in s.computes)
    ]
    assert writing
    assert all(streams(stage.steps[0]) for stage in writing)
    for seed in (1, 2):
        torch.testing.assert_close(fast(*call(4), seed=seed)[0], right.float(), rtol=1e-5, atol=1e-5)  # fmt: skip
