"""A layer of a transformer, with the norms before its halves or after them."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


class Form(NamedTuple):
    """first: the norms come before their halves, not after."""

    heads: int
    first: bool
    causal: bool = False
    gelu: str = "none"


class Layer(nn.Module):
    """projections: of queries, keys and values. norms: of the attention and of the feed-forward half."""

    def __init__(
        self, form: Form, *, projections: list[nn.Linear], out: nn.Linear, up: nn.Linear, down: nn.Linear,
        norms: tuple[nn.LayerNorm, nn.LayerNorm],
    ) -> None:  # fmt: skip
        super().__init__()
        weight = torch.cat([p.weight for p in projections])
        self.qkv = nn.Linear(
            weight.shape[1], weight.shape[0], dtype=weight.dtype, device=weight.device
        )
        with torch.no_grad():
            self.qkv.weight.copy_(weight)
            self.qkv.bias.copy_(torch.cat([p.bias for p in projections]))
        self.heads, self.first, self.causal, self.gelu = form
        self.out, self.up, self.down = out, up, down
        self.norm_1, self.norm_2 = norms

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(found.transpose(1, 2).reshape(batch, tokens, width))

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x), approximate=self.gelu))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.first:
            x = x + self.attend(self.norm_1(x))
            return x + self.feed(self.norm_2(x))
        x = self.norm_1(x + self.attend(x))
        return self.norm_2(x + self.feed(x))


def linears(layer: nn.Module) -> list[nn.Linear]:
    """Of a library's layer: queries, keys, values, output, up, down, whatever it calls them."""
    found = [m for m in layer.modules() if isinstance(m, nn.Linear)]
    assert len(found) == 6, f"{len(found)} products in a layer"
    return found
