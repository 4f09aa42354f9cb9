"""The mixture with all experts and gates in one product, and all towers in two."""

import torch
from torch import nn


class Mmoe(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.experts, self.tasks = len(model.experts), len(model.gates)
        self.width = model.experts[0].out_features
        own = nn.Parameter
        gates = [g.weight for g in model.gates]
        self.first = own(torch.cat([*(e.weight for e in model.experts), *gates]))
        none = torch.zeros_like(torch.cat(gates)[:, 0])
        self.first_bias = own(torch.cat([*(e.bias for e in model.experts), none]))
        up, down = [t[0] for t in model.towers], [t[2] for t in model.towers]
        self.up = own(torch.stack([x.weight.T for x in up]))
        self.up_bias = own(torch.stack([x.bias for x in up])[:, None])
        self.down = own(torch.stack([x.weight.T for x in down]))
        self.down_bias = own(torch.stack([x.bias for x in down])[:, None])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch, cut = x.shape[0], self.experts * self.width
        y = torch.nn.functional.linear(x, self.first, self.first_bias)
        opinions = torch.relu(y[:, :cut]).view(batch, self.experts, self.width)
        weights = torch.softmax(y[:, cut:].view(batch, self.tasks, self.experts), dim=-1)
        mixed = torch.matmul(weights, opinions).transpose(0, 1)
        hidden = torch.relu(torch.baddbmm(self.up_bias, mixed, self.up))
        return torch.softmax(torch.baddbmm(self.down_bias, hidden, self.down), dim=-1).unbind(0)


def plain(model: nn.Module) -> nn.Module:
    return Mmoe(model)
