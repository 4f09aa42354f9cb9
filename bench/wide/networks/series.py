"""Time series: TCN (Bai et al., 2018), N-BEATS (Oreshkin et al., 2019), PatchTST (Nie et al., 2022), Informer with full attention (Zhou et al.,
2020), the temporal fusion transformer (Lim et al., 2019), PatchTSMixer (Ekambaram et al., 2023)."""

import importlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.wide.networks.recommendation import mlp
from bench.wide.registry import Parts, network


class Causal(nn.Module):
    """Two dilated convolutions of the past, and what they are added to."""

    def __init__(self, inside: int, out: int, dilation: int, kernel: int = 7) -> None:
        super().__init__()
        self.before = (kernel - 1) * dilation
        self.conv_1 = nn.Conv1d(inside, out, kernel, dilation=dilation)
        self.conv_2 = nn.Conv1d(out, out, kernel, dilation=dilation)
        self.skip = nn.Conv1d(inside, out, 1) if inside != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.conv_1(F.pad(x, (self.before, 0))))
        y = F.relu(self.conv_2(F.pad(y, (self.before, 0))))
        return F.relu(y + self.skip(x))


@network("time series", "TCN, 8 layers × 784")
def tcn(batch: int) -> Parts:
    """As on sequential MNIST, wider."""
    blocks = [Causal(1 if k == 0 else 128, 128, 1 << k) for k in range(8)]
    last = nn.Conv1d(128, 10, 1)
    return nn.Sequential(*blocks, last), torch.randn(batch, 1, 784)


class NBeats(nn.Module):
    """30 generic blocks of width 512; 96 steps [batch, 96] of 32 x batch series to the next 24."""

    def __init__(self, blocks: int = 30, back: int = 96, ahead: int = 24, width: int = 512) -> None:
        super().__init__()
        self.back = back
        self.blocks = nn.ModuleList(mlp(back, *[width] * 4, back + ahead) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros((), dtype=x.dtype, device=x.device)
        for block in self.blocks:
            found = block(x)
            x, total = x - found[:, : self.back], total + found[:, self.back :]
        return total


@network("time series", "N-BEATS, 30 blocks")
def nbeats(batch: int) -> Parts:
    return NBeats(), torch.randn(32 * batch, 96)


@network("time series", "PatchTST, 7 channels × 512", library="transformers")
def patchtst(batch: int) -> Parts:
    hub: Any = importlib.import_module("transformers")
    config = hub.PatchTSTConfig(
        num_input_channels=7, context_length=512, patch_length=16, patch_stride=8, d_model=128, num_attention_heads=16, ffn_dim=256,
        num_hidden_layers=3, prediction_length=96,
    )  # fmt: skip
    return hub.PatchTSTForPrediction(config), torch.randn(batch, 512, 7)


@network("time series", "PatchTSMixer, 7 channels × 512", library="transformers")
def patchtsmixer(batch: int) -> Parts:
    hub: Any = importlib.import_module("transformers")
    config = hub.PatchTSMixerConfig(context_length=512, patch_length=16, patch_stride=8, num_input_channels=7, prediction_length=96, d_model=48, num_layers=8)  # fmt: skip
    return hub.PatchTSMixerForPrediction(config), torch.randn(batch, 512, 7)


class Distil(nn.Module):
    """Half of the places."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding=1, padding_mode="circular")
        self.norm, self.pool = nn.BatchNorm1d(width), nn.MaxPool1d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(F.elu(self.norm(self.conv(x.transpose(1, 2))))).transpose(1, 2)


class Informer(nn.Module):
    """96 steps of 7 series to the next 24, which a decoder reads as zeros behind the last 48."""

    def __init__(self, width: int = 512, heads: int = 8, series: int = 7, ahead: int = 24) -> None:
        super().__init__()
        self.ahead = ahead
        self.embed = nn.Conv1d(series, width, 3, padding=1, padding_mode="circular")
        self.places = nn.Parameter(torch.randn(128, width) * 0.02)
        kind: dict[str, Any] = {"dim_feedforward": 2048, "activation": "gelu", "batch_first": True}
        self.layer_1 = nn.TransformerEncoderLayer(width, heads, **kind)
        self.layer_2 = nn.TransformerEncoderLayer(width, heads, **kind)
        self.distil = Distil(width)
        self.decoder = nn.TransformerDecoderLayer(width, heads, **kind)
        self.head = nn.Linear(width, series)

    def embedded(self, x: Tensor) -> Tensor:
        return self.embed(x.transpose(1, 2)).transpose(1, 2) + self.places[: x.shape[1]]

    def forward(self, x: Tensor) -> Tensor:
        memory = self.layer_2(self.distil(self.layer_1(self.embedded(x))))
        start = F.pad(x[:, -48:], (0, 0, 0, self.ahead))
        return self.head(self.decoder(self.embedded(start), memory))[:, -self.ahead :]


@network("time series", "Informer, full attention")
def informer(batch: int) -> Parts:
    return Informer(), torch.randn(batch, 96, 7)


class Gated(nn.Module):
    """A gated residual network."""

    def __init__(self, inside: int, width: int, out: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(inside, width), nn.Linear(width, 2 * out)
        self.skip = nn.Linear(inside, out) if inside != out else nn.Identity()
        self.norm = nn.LayerNorm(out)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.skip(x) + F.glu(self.down(F.elu(self.up(x))), -1))


class Fusion(nn.Module):
    """Variables chosen at each step, LSTMs of past and future, attention over all: 168 steps of 8 variables to the next 24."""

    def __init__(self, width: int = 160, variables: int = 8, past: int = 168) -> None:
        super().__init__()
        self.past = past
        self.embed = nn.ModuleList(nn.Linear(1, width) for _ in range(variables))
        self.each = nn.ModuleList(Gated(width, width, width) for _ in range(variables))
        self.choose = Gated(variables * width, width, variables)
        self.before, self.after = (nn.LSTM(width, width, batch_first=True) for _ in range(2))
        self.gate, self.norm = nn.Linear(width, 2 * width), nn.LayerNorm(width)
        self.enrich, self.attend = Gated(width, width, width), nn.MultiheadAttention(width, 4, batch_first=True)  # fmt: skip
        self.last, self.head = Gated(width, width, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        parts = [embed(x[..., k : k + 1]) for k, embed in enumerate(self.embed)]
        weights = torch.softmax(self.choose(torch.cat(parts, -1)), -1)
        each = torch.stack([f(p) for f, p in zip(self.each, parts, strict=True)], -1)
        chosen = (each * weights[..., None, :]).sum(-1)
        first, state = self.before(chosen[:, : self.past])
        second, _ = self.after(chosen[:, self.past :], state)
        y = self.norm(chosen + F.glu(self.gate(torch.cat([first, second], 1)), -1))
        y = self.enrich(y)
        z = y[:, self.past :]
        z = z + self.attend(z, y, y, need_weights=False)[0]
        return self.head(self.last(z))


@network("time series", "temporal fusion transformer")
def tft(batch: int) -> Parts:
    return Fusion(), torch.randn(batch, 192, 8)
