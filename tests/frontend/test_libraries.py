"""What models of other libraries do: self-loops of a graph, factors of two types, sparse buffers, calls that are tried."""

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

import monotile

T = torch.Tensor


class SelfLoops(nn.Module):
    """Edges without those from a node to itself, and one of these for each node: as many as data say (torch_geometric)."""

    def forward(self, x: T, edges: T) -> T:
        nodes = torch.arange(x.shape[0])
        edges = torch.cat([edges[:, edges[0] != edges[1]], torch.stack([nodes, nodes])], 1)
        degrees = torch.zeros(x.shape[0]).index_add(0, edges[1], torch.ones(edges.shape[1]))
        return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]]) / degrees[:, None]


class Angles(nn.Module):
    """Places in float32 by frequencies in float64 (diffusers)."""

    def forward(self, places: T, x: T) -> T:
        angles = torch.outer(places, 1 / 100 ** (torch.arange(4, dtype=torch.float64) / 4))
        return x * angles.cos().float()


class Unused(nn.Module):
    """With a sparse buffer of which it makes no use (Whisper)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("heads", torch.eye(3).to_sparse(), persistent=False)

    def forward(self, x: T) -> T:
        return x * 2


class Tried(nn.Module):
    """Calls layers with an argument that they may not take (speechbrain)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)])

    def forward(self, x: T) -> T:
        for layer in self.layers:
            with contextlib.suppress(TypeError):
                x = layer(x, lengths=x)
            x = layer(x)
        return x


CASES: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
    "self-loops": (SelfLoops(), (torch.randn(6, 3), torch.randint(0, 6, (2, 20)))),
    "two types": (Angles(), (torch.arange(5.0), torch.randn(5, 4))),
    "sparse buffer": (Unused(), (torch.randn(3),)),
    "tried": (Tried(), (torch.randn(3, 4),)),
}


@pytest.mark.parametrize("name", CASES)
def test_models(name: str) -> None:
    model, args = CASES[name]
    compiled = monotile.compile(model.eval(), args)
    for _ in range(2):
        torch.testing.assert_close(compiled(*args), model(*args), rtol=1e-5, atol=1e-6)
        args = tuple(x.flip(-1) for x in args)
