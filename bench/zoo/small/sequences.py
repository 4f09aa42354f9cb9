"""Recurrences, and attention."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.zoo.small.registry import Function, Made, made, matrix, small


@small
def gru() -> Made:
    def forward(m: Function, x: Tensor) -> Tensor:
        return m.layers(x)[0]

    return made(Function(forward, layers=nn.GRU(96, 128, 2)), (12, 1, 96))


@small
def lstm_both_ways() -> Made:
    def forward(m: Function, x: Tensor) -> tuple[Tensor, ...]:
        out, (h, c) = m.layers(x)
        return out, h, c

    layers = nn.LSTM(40, 64, 2, bidirectional=True, proj_size=24, batch_first=True)
    return made(Function(forward, layers=layers), (3, 9, 40))


@small
def cells() -> Made:
    """Layers of a cell written by hand, unrolled; its state goes through another product, over all of it."""

    def forward(m: Function, x: Tensor) -> Tensor:
        out = list(x)
        for k in range(m.w.shape[0]):
            h = torch.zeros_like(out[0])
            for t in range(len(out)):
                h = torch.tanh(out[t] @ m.w[k].T + h @ m.u[k].T)
                h = out[t] = torch.sin(h @ m.v[k].T)
        return torch.stack(out)

    weights = {k: matrix(3, 64, 64) for k in "wuv"}
    return made(Function(forward, **weights), (7, 1, 64))


@small
def selective_scan() -> Made:
    """A linear recurrence of a state for each channel, whose decay depends on the input."""

    def forward(m: Function, x: Tensor) -> Tensor:
        delta, b, c = F.softplus(m.delta(x)), m.b(x), m.c(x)
        h = x.new_zeros(x.shape[1], 16)
        out = []
        for t in range(x.shape[0]):
            h = h * torch.exp(delta[t, :, None] * -m.a.exp()) + (delta[t] * x[t])[:, None] * b[t]
            out.append((h * c[t]).sum(-1))
        return torch.stack(out) * F.silu(m.gate(x))

    def make() -> nn.Module:
        delta, gate, b, c = (nn.Linear(64, n) for n in (64, 64, 16, 16))
        return Function(forward, delta=delta, gate=gate, b=b, c=c, a=torch.rand(64, 16))

    return made(make(), (10, 64))


@small
def causal_attention() -> Made:
    def forward(m: Function, x: Tensor) -> Tensor:
        q, k, v = m.qkv(x).view(*x.shape[:2], 3, 8, 64).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return m.out(y.transpose(1, 2).flatten(2))

    parts = {"qkv": nn.Linear(512, 1536), "out": nn.Linear(512, 512)}
    return made(Function(forward, **parts), (1, 200, 512))


@small
def long_attention() -> Made:
    """Heads and keys enough for warpgroups; fewer queries a key's head."""

    def forward(_: Function, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    return made(Function(forward), (1, 44, 1000, 64), *[(1, 11, 1000, 64)] * 2)


@small
def masked_attention() -> Made:
    """A mask of truths over keys, one that is added (a slope a head), and a softmax over both in float32."""

    def forward(m: Function, x: Tensor, seen: Tensor) -> Tensor:
        n = x.shape[1]
        q, k, v = m.qkv(x).view(*x.shape[:2], 3, 4, 32).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None, :])
        away = (torch.arange(n)[:, None] - torch.arange(n)).abs().to(x.dtype)
        scores = q @ k.mT / math.sqrt(32) - m.slope[:, None, None] * away
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
        z = torch.softmax(scores.float(), -1).to(x.dtype) @ v
        return (y + z).transpose(1, 2).flatten(2)

    model, (x,) = made(
        Function(forward, qkv=nn.Linear(128, 384), slope=torch.rand(4)), (2, 48, 128)
    )
    return model, (x, torch.arange(48)[None] < torch.tensor([[40], [48]]))


@small
def transformer() -> Made:
    """PyTorch's own encoder and decoder layers, norms first, over two lengths."""

    def forward(m: Function, x: Tensor, y: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1], dtype=y.dtype)
        return m.both(x, y, tgt_mask=mask)

    sizes = {"d_model": 128, "nhead": 4, "num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 256}  # fmt: skip
    both = nn.Transformer(**sizes, batch_first=True, norm_first=True)
    return made(Function(forward, both=both), (2, 20, 128), (2, 12, 128))


@small
def decoder_step() -> Made:
    """One token, whose keys and values are put in buffers at a position that is data."""

    def forward(m: Function, x: Tensor, at: Tensor) -> Tensor:
        for k, block in enumerate(m.blocks):
            q, key, value = block["qkv"](block["norm"](x)).view(3, 8, 1, 64)
            m.keys[k].index_copy_(1, at, key)
            m.values[k].index_copy_(1, at, value)
            seen = torch.arange(m.keys.shape[2]) <= at
            y = F.scaled_dot_product_attention(q, m.keys[k], m.values[k], attn_mask=seen[None])
            x = x + block["out"](y.flatten())
            x = x + block["down"](F.gelu(block["up"](x)))
        return x

    def block() -> nn.ModuleDict:
        products = {"qkv": (512, 1536), "out": (512, 512), "up": (512, 2048), "down": (2048, 512)}
        linear = {k: nn.Linear(*sizes) for k, sizes in products.items()}
        return nn.ModuleDict({"norm": nn.LayerNorm(512), **linear})

    def make() -> nn.Module:
        blocks = nn.ModuleList(block() for _ in range(2))
        held = {"keys": torch.randn(2, 8, 256, 64), "values": torch.randn(2, 8, 256, 64)}
        return Function(forward, ("keys", "values"), blocks=blocks, **held)

    model, (x,) = made(make(), (512,))
    return model, (x, torch.tensor([17]))


@small
def complex_rotary() -> Made:
    def forward(m: Function, x: Tensor) -> Tensor:
        z = torch.view_as_complex(m.of(x).float().reshape(2, 24, 4, 16, 2))
        turned = z * torch.polar(torch.ones_like(m.angles), m.angles)[None, :, None]
        q = torch.view_as_real(turned).flatten(3).to(x.dtype).transpose(1, 2)
        return torch.softmax(q @ q.mT, -1) @ q

    def make() -> nn.Module:
        angles = torch.outer(torch.arange(24.0), 1.0 / 10000 ** (torch.arange(16.0) / 16)).float()
        return Function(forward, ("angles",), angles=angles, of=nn.Linear(128, 128))

    return made(make(), (2, 24, 128))
