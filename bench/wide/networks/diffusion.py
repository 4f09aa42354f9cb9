"""Diffusion: the U-Net of DDPM (Ho et al., 2020) on 64 × 64, DiT-S/2 (Peebles and Xie, 2022), the decoder of latent diffusion's
autoencoder (Rombach et al., 2021)."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.wide.registry import Parts, network


def waves(times: Tensor, width: int) -> Tensor:
    """Sines and cosines [batch, width] of times [batch]."""
    scale = torch.exp(torch.arange(width // 2, device=times.device) * (-math.log(10_000) / (width // 2)))  # fmt: skip
    angles = times.float()[:, None] * scale
    return torch.cat([angles.sin(), angles.cos()], 1).to(times.dtype)


def norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(32, channels, eps=1e-6)


class Block(nn.Module):
    """Two convolutions and what they are added to. about: width of what is known of the time, 0 for none."""

    def __init__(self, inside: int, out: int, about: int = 0) -> None:
        super().__init__()
        self.norm_1, self.conv_1 = norm(inside), nn.Conv2d(inside, out, 3, padding=1)
        self.norm_2, self.conv_2 = norm(out), nn.Conv2d(out, out, 3, padding=1)
        self.about = nn.Linear(about, out) if about else None
        self.skip = nn.Conv2d(inside, out, 1) if inside != out else nn.Identity()

    def forward(self, x: Tensor, about: Tensor | None = None) -> Tensor:
        y = self.conv_1(F.silu(self.norm_1(x)))
        if self.about is not None and about is not None:
            y = y + self.about(F.silu(about))[:, :, None, None]
        return self.skip(x) + self.conv_2(F.silu(self.norm_2(y)))


class Attend(nn.Module):
    """One head over all places."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = norm(channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, -1)
        y = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


def double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


class DenoisingUNet(nn.Module):
    """128 channels × (1, 2, 2, 2), two blocks a resolution, attention at 16 × 16."""

    def __init__(self, channels: int = 128, factors: tuple[int, ...] = (1, 2, 2, 2), attended: int = 2) -> None:  # fmt: skip
        super().__init__()
        self.channels, about = channels, 4 * channels
        self.time = nn.Sequential(nn.Linear(channels, about), nn.SiLU(), nn.Linear(about, about))
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        widths, now = [channels], channels
        self.down, self.smaller = nn.ModuleList(), nn.ModuleList()
        for level, factor in enumerate(factors):
            for _ in range(2):
                self.down.append(self.level(now, factor * channels, level == attended, about))
                now = factor * channels
                widths.append(now)
            if level < len(factors) - 1:
                self.smaller.append(nn.Conv2d(now, now, 3, 2, 1))
                widths.append(now)
        self.middle = nn.ModuleList([Block(now, now, about), Attend(now), Block(now, now, about)])
        self.up, self.larger = nn.ModuleList(), nn.ModuleList()
        for level, factor in reversed(list(enumerate(factors))):
            for _ in range(3):
                both = now + widths.pop()
                self.up.append(self.level(both, factor * channels, level == attended, about))
                now = factor * channels
            if level:
                self.larger.append(nn.Conv2d(now, now, 3, padding=1))
        self.norm, self.last = norm(now), nn.Conv2d(now, 3, 3, padding=1)

    @staticmethod
    def level(inside: int, out: int, attended: bool, about: int) -> nn.ModuleList:
        return nn.ModuleList([Block(inside, out, about), *([Attend(out)] if attended else [])])

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        about = self.time(waves(times, self.channels))

        def through(blocks: Iterable[nn.Module], x: Tensor) -> Tensor:
            for b in blocks:
                x = b(x, about) if isinstance(b, Block) else b(x)
            return x

        x = self.first(x)
        kept = [x]
        for k, blocks in enumerate(self.down):
            x = through(blocks.children(), x)
            kept.append(x)
            if k % 2 and k // 2 < len(self.smaller):
                x = self.smaller[k // 2](x)
                kept.append(x)
        x = through(self.middle, x)
        for k, blocks in enumerate(self.up):
            x = through(blocks.children(), torch.cat([x, kept.pop()], 1))
            if k % 3 == 2 and k // 3 < len(self.larger):
                x = self.larger[k // 3](double(x))
        return self.last(F.silu(self.norm(x)))


@network("diffusion", "DDPM's U-Net, 64²", images=True)
def ddpm_unet(batch: int) -> Parts:
    return DenoisingUNet(), torch.randn(batch, 3, 64, 64), torch.rand(batch) * 1000


class DiTBlock(nn.Module):
    """Scales, shifts and gates of each half come from what is asked for (adaLN-Zero)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.ask = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, asked: Tensor) -> Tensor:
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = self.ask(F.silu(asked))[:, None].chunk(6, -1)  # fmt: skip
        y = self.norm(x) * (1 + scale_1) + shift_1
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + gate_1 * self.out(y)
        y = self.norm(x) * (1 + scale_2) + shift_2
        return x + gate_2 * self.down(F.gelu(self.up(y), approximate="tanh"))


class DiT(nn.Module):
    """S/2: 12 blocks of width 384 over 256 patches of a latent image [batch, 4, 32, 32]."""

    def __init__(self, layers: int = 12, width: int = 384, heads: int = 6, size: int = 32) -> None:
        super().__init__()
        self.size = size // 2
        self.patches = nn.Conv2d(4, width, 2, 2)
        self.places = nn.Parameter(torch.randn(1, self.size**2, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.labels = nn.Embedding(1001, width)
        self.blocks = nn.ModuleList(DiTBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.ask, self.last = nn.Linear(width, 2 * width), nn.Linear(width, 2 * 2 * 8)

    def forward(self, x: Tensor, times: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        asked = self.time(waves(times, 256)) + self.labels(labels)
        for block in self.blocks:
            x = block(x, asked)
        shift, scale = self.ask(F.silu(asked))[:, None].chunk(2, -1)
        x = self.last(self.norm(x) * (1 + scale) + shift)
        x = x.unflatten(1, (self.size, self.size)).unflatten(3, (2, 2, 8))
        return x.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)


@network("diffusion", "DiT-S/2")
def dit_s_2(batch: int) -> Parts:
    return DiT(), torch.randn(batch, 4, 32, 32), torch.rand(batch) * 1000, torch.randint(0, 1000, (batch,))  # fmt: skip


class Decoder(nn.Module):
    """Latents [batch, 4, 32, 32] to images [batch, 3, 256, 256]."""

    def __init__(self, channels: tuple[int, ...] = (512, 512, 256, 128)) -> None:
        super().__init__()
        now = channels[0]
        self.first = nn.Conv2d(4, now, 3, padding=1)
        layers: list[nn.Module] = [Block(now, now), Attend(now), Block(now, now)]
        for level, width in enumerate(channels):
            for _ in range(3):
                layers.append(Block(now, width))
                now = width
            if level < len(channels) - 1:
                layers += [nn.Upsample(scale_factor=2.0), nn.Conv2d(now, now, 3, padding=1)]
        self.layers = nn.Sequential(*layers)
        self.norm, self.last = norm(now), nn.Conv2d(now, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.silu(self.norm(self.layers(self.first(x)))))


@network("diffusion", "decoder of latent diffusion, 256²", images=True)
def vae_decoder(batch: int) -> Parts:
    return Decoder(), torch.randn(batch, 4, 32, 32)
