"""Whole small models, of the kinds that Monotile is meant for first."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.frontend.against import check


def _bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        vocab_size=96,
        max_position_embeddings=32,
    )
    return transformers.BertModel(config).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_bert(dtype: torch.dtype) -> None:
    captured = check(_bert().to(dtype), (torch.randint(0, 96, (2, 8)),))
    assert set(captured.constants) == {"embeddings.position_ids", "embeddings.token_type_ids"}


def test_bert_with_a_mask() -> None:
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[0, 5:] = 0
    check(_bert(), (torch.randint(0, 96, (2, 8)),), {"attention_mask": mask})


class MixtureOfExperts(nn.Module):
    def __init__(self, features: int, experts: int, width: int, tasks: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(features, width) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(features, experts) for _ in range(tasks))
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())
            for _ in range(tasks)
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        mixed = torch.stack([F.relu(expert(x)) for expert in self.experts], 1)
        return [
            tower((F.softmax(gate(x), -1).unsqueeze(-1) * mixed).sum(1))
            for gate, tower in zip(self.gates, self.towers, strict=True)
        ]


def test_multi_gate_mixture_of_experts() -> None:
    check(MixtureOfExperts(49, 8, 16, 2), (torch.randn(3, 49),))


class Unrolled(nn.Module):
    """An LSTM written out by hand, layer by layer or step by step."""

    def __init__(self, layers: int, width: int, layers_first: bool) -> None:
        super().__init__()
        self.input = nn.ParameterList(torch.randn(width, 4 * width) for _ in range(layers))
        self.hidden = nn.ParameterList(torch.randn(width, 4 * width) for _ in range(layers))
        self.bias = nn.ParameterList(torch.randn(4 * width) for _ in range(layers))
        self.layers, self.layers_first = layers, layers_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zero = x.new_zeros(x.shape[1:])
        h, c = [zero] * self.layers, [zero] * self.layers
        rows = list(x.unbind(0))
        points = [(k, t) for k in range(self.layers) for t in range(len(rows))]
        for k, t in points if self.layers_first else sorted(points, key=lambda p: p[::-1]):
            gates = rows[t] @ self.input[k] + h[k] @ self.hidden[k] + self.bias[k]
            i, f, g, o = gates.chunk(4, -1)
            c[k] = torch.sigmoid(f) * c[k] + torch.sigmoid(i) * torch.tanh(g)
            h[k] = torch.sigmoid(o) * torch.tanh(c[k])
            rows[t] = h[k]
        return torch.stack(rows)


@pytest.mark.parametrize("layers_first", [True, False])
def test_unrolled_lstm(layers_first: bool) -> None:
    check(Unrolled(3, 4, layers_first), (torch.randn(5, 2, 4),))


def test_transformer_layers() -> None:
    layer = nn.TransformerDecoderLayer(16, 4, 32, batch_first=True)
    check(layer.eval(), (torch.randn(2, 5, 16), torch.randn(2, 7, 16)))
    check(nn.TransformerEncoderLayer(16, 4, 32).eval(), (torch.randn(5, 2, 16),))


class Translator(nn.Module):
    """nn.Transformer, which looks whether the masks that it is given are causal."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Transformer(16, 4, 2, 2, 32, batch_first=True)

    def forward(self, source: torch.Tensor, target: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # fmt: skip
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=target.dtype)
        return self.layers(source, target, src_mask=mask, tgt_mask=causal)


@pytest.mark.parametrize("causal", [True, False])
def test_a_transformer_is_given_masks(causal: bool) -> None:
    mask = torch.where(torch.rand(5, 5) < 0.3, -torch.inf, 0.0).fill_diagonal_(0)
    if causal:
        mask = nn.Transformer.generate_square_subsequent_mask(5)
    check(Translator().eval(), (torch.randn(2, 5, 16), torch.randn(2, 7, 16), mask))


def test_a_small_convolutional_network() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.Conv2d(8, 8, 3, 1, 1, groups=8),
        nn.Hardswish(),
        nn.MaxPool2d(3, 2, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    ).eval()
    check(model, (torch.randn(2, 3, 16, 16),))
