"""ViT: patches as one product, then an encoder with norms first; gives the last states and the pooled one."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.plain.transformer import Form, Layer, linears


class Vit(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        config, given = model.config, model.embeddings
        assert config.hidden_act == "gelu"
        self.patch = config.patch_size
        self.projection = given.patch_embeddings.projection
        self.start, self.places = given.cls_token, given.position_embeddings
        self.norm, self.pool = model.layernorm, model.pooler.dense
        self.layers = nn.ModuleList()
        form = Form(config.num_attention_heads, first=True)
        for layer in getattr(model, "layers", None) or model.encoder.layer:
            *projections, out, up, down = linears(layer)
            norms = (layer.layernorm_before, layer.layernorm_after)
            self.layers.append(
                Layer(form, projections=projections, out=out, up=up, down=down, norms=norms)
            )

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch, channels, height, width = image.shape
        p = self.patch
        patches = image.view(batch, channels, height // p, p, width // p, p)
        patches = patches.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * p * p)
        x = F.linear(patches, self.projection.weight.flatten(1), self.projection.bias)
        x = torch.cat([self.start.expand(batch, -1, -1), x], dim=1) + self.places
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return x, torch.tanh(self.pool(x[:, 0]))


def plain(model: nn.Module) -> nn.Module:
    return Vit(model)
