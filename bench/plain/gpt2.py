"""GPT-2 over a whole prompt, without a cache: gives the logits."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.plain.transformer import Form, Layer


class Gpt2(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        given, config = model.transformer, model.config
        assert config.activation_function == "gelu_new"
        self.words, self.places, self.norm = given.wte, given.wpe, given.ln_f
        form = Form(config.n_head, first=True, causal=True, gelu="tanh")
        self.layers = nn.ModuleList(
            Layer(
                form,
                projections=[_linear(block.attn.c_attn)],
                out=_linear(block.attn.c_proj),
                up=_linear(block.mlp.c_fc),
                down=_linear(block.mlp.c_proj),
                norms=(block.ln_1, block.ln_2),
            )
            for block in given.h
        )
        self.head = model.lm_head

    def forward(self, ids: torch.Tensor, use_cache: bool = False) -> torch.Tensor:
        assert not use_cache
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.head.weight)


def _linear(conv: nn.Module) -> nn.Linear:
    """The library's Conv1D, whose weight is transposed, as a Linear."""
    weight = conv.weight
    out = nn.Linear(weight.shape[0], weight.shape[1], dtype=weight.dtype, device=weight.device)
    with torch.no_grad():
        out.weight.copy_(weight.T)
        out.bias.copy_(conv.bias)
    return out


def plain(model: nn.Module) -> nn.Module:
    return Gpt2(model)
