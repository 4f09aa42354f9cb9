"""BERT's encoder."""

import torch
from torch import nn

from bench.plain.transformer import Form, Layer, linears


class Bert(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        given, config = model.embeddings, model.config
        assert config.hidden_act == "gelu"
        self.words, self.places = given.word_embeddings, given.position_embeddings
        self.types, self.norm = given.token_type_embeddings, given.LayerNorm
        self.layers = nn.ModuleList()
        form = Form(config.num_attention_heads, first=False)
        for layer in model.encoder.layer:
            *projections, out, up, down = linears(layer)
            norms = (layer.attention.output.LayerNorm, layer.output.LayerNorm)
            self.layers.append(
                Layer(form, projections=projections, out=out, up=up, down=down, norms=norms)
            )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]] + self.types.weight[0]
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        return x


def plain(model: nn.Module) -> nn.Module:
    return Bert(model)
