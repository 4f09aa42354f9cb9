"""Speech: encoders of transformers over a second of samples or thirty of spectrogram, and Conformer (Gulati et al., 2020), Conv-TasNet (Luo and
Mesgarani, 2018), WaveNet (van den Oord et al., 2016) and ECAPA-TDNN (Desplanques et al., 2020)."""

import importlib
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.wide.registry import NETWORKS, Network, Parts, network


class First(nn.Module):
    """The first result of a library's model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)[0]


def of_transformers(model: str, config: str, shape: tuple[int, ...], sizes: dict[str, Any], batch: int) -> Parts:  # fmt: skip
    hub: Any = importlib.import_module("transformers")
    return First(getattr(hub, model)(getattr(hub, config)(**sizes))), torch.randn(batch, *shape)


@network("speech", "Whisper base encoder, 30 s", library="transformers")
def whisper_base(batch: int) -> Parts:
    hub: Any = importlib.import_module("transformers")
    whisper: Any = importlib.import_module("transformers.models.whisper.modeling_whisper")
    config = hub.WhisperConfig(encoder_layers=6, d_model=512, encoder_attention_heads=8, encoder_ffn_dim=2048)  # fmt: skip
    return First(whisper.WhisperEncoder(config)), torch.randn(batch, 80, 3000)


SECOND = (16_000,)
for _name, _title, _model, _config, _shape in (
    ("wav2vec2_base", "wav2vec 2.0 base, 1 s", "Wav2Vec2Model", "Wav2Vec2Config", SECOND),
    ("wavlm_base", "WavLM base, 1 s", "WavLMModel", "WavLMConfig", SECOND),
):
    _make = partial(of_transformers, _model, _config, _shape, {})
    NETWORKS[_name] = Network(_title, "speech", _make, library="transformers")


def half_step(width: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))  # fmt: skip


class ConformerBlock(nn.Module):
    def __init__(self, width: int, heads: int, kernel: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = half_step(width), half_step(width)
        self.norm_1, self.norm_2, self.norm_3 = (nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gated = nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.batch_norm, self.pointwise = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.before(x) / 2
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = F.glu(self.gated(self.norm_2(x).transpose(1, 2)), dim=1)
        y = self.pointwise(F.silu(self.batch_norm(self.depthwise(y))))
        x = x + y.transpose(1, 2)
        return self.norm_3(x + self.after(x) / 2)


class Conformer(nn.Module):
    """Medium: 16 blocks of width 256 over a quarter of the frames. It takes spectrograms [batch, frames, 80]."""

    def __init__(self, layers: int = 16, width: int = 256, heads: int = 4, bands: int = 80) -> None:
        super().__init__()
        self.less = nn.Sequential(nn.Conv2d(1, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3, 2), nn.ReLU())  # fmt: skip
        self.project = nn.Linear(width * ((bands - 3) // 4), width)
        self.blocks = nn.Sequential(*(ConformerBlock(width, heads, 31) for _ in range(layers)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.less(x[:, None]).transpose(1, 2).flatten(2)
        return self.blocks(self.project(x))


@network("speech", "Conformer-M, 10 s")
def conformer(batch: int) -> Parts:
    return Conformer(), torch.randn(batch, 1000, 80)


class Separable(nn.Module):
    """A dilated depthwise convolution between two pointwise ones; what is added to the input, and what is collected."""

    def __init__(self, width: int, hidden: int, dilation: int) -> None:
        super().__init__()
        depthwise = nn.Conv1d(hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden)
        self.layers = nn.Sequential(
            nn.Conv1d(width, hidden, 1), nn.PReLU(), nn.GroupNorm(1, hidden), depthwise, nn.PReLU(), nn.GroupNorm(1, hidden)
        )  # fmt: skip
        self.residual, self.skip = nn.Conv1d(hidden, width, 1), nn.Conv1d(hidden, width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layers(x)
        return x + self.residual(y), self.skip(y)


class ConvTasNet(nn.Module):
    """24 blocks, three times dilations of 1 to 128, on a second at 8 kHz [batch, samples]; the two speakers' samples."""

    def __init__(self, filters: int = 512, width: int = 128, speakers: int = 2) -> None:
        super().__init__()
        self.speakers = speakers
        self.encode = nn.Conv1d(1, filters, 16, 8, bias=False)
        self.norm, self.narrow = nn.GroupNorm(1, filters), nn.Conv1d(filters, width, 1)
        self.blocks = nn.ModuleList(Separable(width, filters, 1 << (k % 8)) for k in range(24))
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(width, speakers * filters, 1), nn.Sigmoid())
        self.decode = nn.ConvTranspose1d(filters, 1, 16, 8, bias=False)

    def forward(self, samples: Tensor) -> Tensor:
        coded = F.relu(self.encode(samples[:, None]))
        x, total = self.narrow(self.norm(coded)), torch.zeros(())
        for k, block in enumerate(self.blocks):
            x, part = block(x)
            total = total + part if k else part
        masks = self.mask(total).unflatten(1, (self.speakers, -1))
        each = (masks * coded[:, None]).flatten(0, 1)
        return self.decode(each).unflatten(0, (-1, self.speakers)).squeeze(2)


@network("speech", "Conv-TasNet, 1 s")
def conv_tasnet(batch: int) -> Parts:
    return ConvTasNet(), torch.randn(batch, 8000)


class WaveNet(nn.Module):
    """30 layers, three times dilations of 1 to 512; logits [batch, 256, samples] of all samples [batch, samples]."""

    def __init__(self, layers: int = 30, width: int = 64, skips: int = 256) -> None:
        super().__init__()
        self.samples = nn.Embedding(256, width)
        self.dilations = dilations = [1 << (k % 10) for k in range(layers)]
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=d) for d in dilations)
        self.residuals = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in dilations)
        self.skips = nn.ModuleList(nn.Conv1d(width, skips, 1) for _ in dilations)
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(skips, skips, 1), nn.ReLU(), nn.Conv1d(skips, 256, 1))  # fmt: skip

    def forward(self, samples: Tensor) -> Tensor:
        x = self.samples(samples).transpose(1, 2)
        total = torch.zeros(())
        layers = zip(self.dilations, self.gates, self.residuals, self.skips, strict=True)
        for before, gate, residual, skip in layers:
            filtered, gated = gate(F.pad(x, (before, 0))).chunk(2, 1)
            y = torch.tanh(filtered) * torch.sigmoid(gated)
            x, total = x + residual(y), total + skip(y)
        return self.head(total)


@network("speech", "WaveNet, 4,000 samples")
def wavenet(batch: int) -> Parts:
    return WaveNet(), torch.randint(0, 256, (batch, 4000))


class Res2Block(nn.Module):
    """Eight parts of the channels, each convolved with the result of the one before, then weighed by channel."""

    def __init__(self, width: int, dilation: int, parts: int = 8) -> None:
        super().__init__()
        self.parts, part = parts, width // parts
        self.first, self.last = layer(width, width, 1), layer(width, width, 1)
        self.convs = nn.ModuleList(layer(part, part, 3, dilation) for _ in range(parts - 1))
        self.weigh = nn.Sequential(nn.Conv1d(width, 128, 1), nn.ReLU(), nn.Conv1d(128, width, 1), nn.Sigmoid())  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        parts = self.first(x).chunk(self.parts, 1)
        out = [parts[0]]
        for k, conv in enumerate(self.convs):
            out.append(conv(parts[k + 1] + out[-1] if k else parts[1]))
        y = self.last(torch.cat(out, 1))
        return x + y * self.weigh(y.mean(2, keepdim=True))


def layer(inside: int, out: int, kernel: int, dilation: int = 1) -> nn.Sequential:
    conv = nn.Conv1d(inside, out, kernel, padding=kernel // 2 * dilation, dilation=dilation)
    return nn.Sequential(conv, nn.ReLU(), nn.BatchNorm1d(out))


class ECAPA(nn.Module):
    """1,024 channels; the speaker's vector [batch, 192] of a spectrogram [batch, 80, frames]."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.first = layer(80, width, 5)
        self.blocks = nn.ModuleList(Res2Block(width, d) for d in (2, 3, 4))
        self.join = nn.Conv1d(3 * width, 1536, 1)
        self.attend = nn.Sequential(nn.Conv1d(3 * 1536, 128, 1), nn.Tanh(), nn.Conv1d(128, 1536, 1))
        self.norm, self.last = nn.BatchNorm1d(3072), nn.Linear(3072, 192)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        found: list[Tensor] = []
        for block in self.blocks:
            x = block(x)
            found.append(x)
        x = F.relu(self.join(torch.cat(found, 1)))
        mean, spread = x.mean(2, keepdim=True), x.var(2, keepdim=True, unbiased=False).sqrt()
        weights = torch.softmax(self.attend(torch.cat([x, mean.expand_as(x), spread.expand_as(x)], 1)), 2)  # fmt: skip
        centre = (weights * x).sum(2)
        around = ((weights * x.square()).sum(2) - centre.square()).clamp(min=1e-4).sqrt()
        return self.last(self.norm(torch.cat([centre, around], 1)))


@network("speech", "ECAPA-TDNN, 3 s")
def ecapa(batch: int) -> Parts:
    return ECAPA(), torch.randn(batch, 80, 300)
