"""State spaces and mixtures: Mamba-2 130m (Dao and Gu, 2024) on one chunk, a transformer with experts (Fedus et al., 2021)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.wide.registry import Parts, network
from bench.zoo.weights import tokens_of


class StateSpace(nn.Module):
    """A layer of Mamba-2, its scan as masked products: what each place of the chunk gives to each later one."""

    def __init__(self, width: int, heads: int = 24, states: int = 128) -> None:
        super().__init__()
        inner = 2 * width
        self.split = [inner, inner + 2 * states, heads]
        self.parts, self.heads = [inner, states, states], heads
        self.norm, self.norm_inner = nn.RMSNorm(width), nn.RMSNorm(inner)
        self.project = nn.Linear(width, sum(self.split), bias=False)
        self.conv = nn.Conv1d(inner + 2 * states, inner + 2 * states, 4, padding=3, groups=inner + 2 * states)  # fmt: skip
        self.decay, self.direct = nn.Parameter(torch.zeros(heads)), nn.Parameter(torch.ones(heads))
        self.step = nn.Parameter(torch.full((heads,), -3.0))
        self.out = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, mixed, steps = self.project(self.norm(x)).split(self.split, -1)
        mixed = F.silu(self.conv(mixed.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        values, keys, queries = mixed.split(self.parts, -1)
        values = values.unflatten(-1, (self.heads, -1))
        steps = F.softplus((steps + self.step).float())
        total = (-self.decay.float().exp() * steps).cumsum(1).transpose(1, 2)
        away = (total[..., :, None] - total[..., None, :]).tril()
        weights = away.exp().tril().to(x.dtype) * (queries @ keys.transpose(1, 2))[:, None]
        taken = values * steps.to(x.dtype)[..., None]
        y = (weights @ taken.transpose(1, 2)).transpose(1, 2) + self.direct[:, None] * values
        return x + self.out(self.norm_inner(y.flatten(2) * F.silu(gate)))


class Mamba(nn.Module):
    def __init__(self, layers: int = 24, width: int = 768, vocabulary: int = 50280) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.Sequential(*(StateSpace(width) for _ in range(layers)))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(self.embed(ids))))


@network("mixtures", "Mamba-2 130m, a chunk of 128")
def mamba2_130m(batch: int) -> Parts:
    return Mamba(), tokens_of(50280, 128, batch=batch)


class Experts(nn.Module):
    """Eight feed-forward halves, the two best of which a token takes; all are computed."""

    def __init__(self, width: int, hidden: int, experts: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        best, which = self.gate(rows).topk(2, -1)
        weights = torch.zeros_like(self.gate(rows)).scatter(1, which, torch.softmax(best, -1))
        each = F.gelu(rows @ self.up) @ self.down
        return (each * weights.T[..., None]).sum(0).view_as(x)


class SparseLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.experts = Experts(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))  # fmt: skip
        return x + self.experts(self.norm_2(x))


@network("mixtures", "transformer with 8 experts, 6 layers × 512")
def sparse_transformer(batch: int) -> Parts:
    return nn.Sequential(nn.Embedding(32_000, 512), *(SparseLayer(512, 8) for _ in range(6))), tokens_of(32_000, 128, batch=batch)  # fmt: skip
