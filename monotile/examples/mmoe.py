"""Multi-gate mixture of experts (Ma et al., KDD 2018): shared experts, a softmax gate and a tower for each task."""

import torch
from torch import nn


class MixtureOfExperts(nn.Module):
    def __init__(self, inputs: int, experts: int, width: int, tasks: int, tower: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(inputs, width) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(inputs, experts, bias=False) for _ in range(tasks))
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, tower), nn.ReLU(), nn.Linear(tower, 2))
            for _ in range(tasks)
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        opinions = torch.stack([torch.relu(expert(x)) for expert in self.experts], dim=1)
        answers: list[torch.Tensor] = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            weights = torch.softmax(gate(x), dim=-1).unsqueeze(-1)
            answers.append(torch.softmax(tower((weights * opinions).sum(dim=1)), dim=-1))
        return answers


def make(
    dtype: torch.dtype = torch.float32,
    *,
    batch: int = 1,
    inputs: int = 499,
    experts: int = 8,
    width: int = 16,
    tasks: int = 2,
    tower: int = 8,
) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model = MixtureOfExperts(inputs, experts, width, tasks, tower).eval().to(dtype)
    return model, (torch.randn(batch, inputs, dtype=dtype),)
