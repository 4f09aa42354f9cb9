"""Networks on a graph that stays: GCN (Kipf and Welling, 2016) and GAT (Veličković et al., 2017) on a graph of the size of Cora, with the
nodes' features for each of the batch; GIN (Xu et al., 2018) on a batch of molecules."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.wide.registry import Parts, network

NODES, EDGES, FEATURES, CLASSES = 2708, 10556, 1433, 7  # of Cora


def edges_of(nodes: int, edges: int) -> Tensor:
    """Sources and targets [2, edges + nodes], each node's edge to itself among them."""
    own = torch.arange(nodes).expand(2, nodes)
    return torch.cat([torch.randint(0, nodes, (2, edges)), own], 1)


class GraphConvolution(nn.Module):
    """Products with the normalised adjacency matrix, which is dense."""

    adjacency: Tensor

    def __init__(self, widths: tuple[int, ...] = (FEATURES, 64, CLASSES)) -> None:
        super().__init__()
        source, target = edges_of(NODES, EDGES)
        adjacency = torch.zeros(NODES, NODES).index_put_((target, source), torch.ones(()), accumulate=True)  # fmt: skip
        degree = adjacency.sum(1).rsqrt()
        self.register_buffer("adjacency", degree[:, None] * adjacency * degree)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        for k, layer in enumerate(self.layers):
            x = self.adjacency @ layer(F.relu(x) if k else x)
        return x


@network("graphs", "GCN, dense, Cora")
def gcn(batch: int) -> Parts:
    return GraphConvolution(), torch.randn(batch, NODES, FEATURES)


class Attention(nn.Module):
    """Softmax over the edges that reach a node, whose sums are scattered."""

    def __init__(self, inside: int, heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.project = nn.Linear(inside, heads * width, bias=False)
        self.of_source = nn.Parameter(torch.randn(heads, width) * 0.1)
        self.of_target = nn.Parameter(torch.randn(heads, width) * 0.1)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        h = self.project(x).unflatten(-1, (self.heads, self.width))
        scores = (h * self.of_source).sum(-1)[:, source] + (h * self.of_target).sum(-1)[:, target]
        weights = F.leaky_relu(scores, 0.2).exp()
        batch, nodes = x.shape[:2]
        total = weights.new_zeros(batch, nodes, self.heads).index_add(1, target, weights)
        parts = (weights / total[:, target])[..., None] * h[:, source]
        return torch.zeros_like(h).index_add(1, target, parts).flatten(2)


class GraphAttention(nn.Module):
    source: Tensor
    target: Tensor

    def __init__(self, heads: int = 8, width: int = 8) -> None:
        super().__init__()
        source, target = edges_of(NODES, EDGES)
        self.register_buffer("source", source.clone())
        self.register_buffer("target", target.clone())
        self.first = Attention(FEATURES, heads, width)
        self.second = Attention(heads * width, 1, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.elu(self.first(x, self.source, self.target))
        return self.second(x, self.source, self.target)


@network("graphs", "GAT, Cora")
def gat(batch: int) -> Parts:
    return GraphAttention(), torch.randn(batch, NODES, FEATURES)


class Isomorphism(nn.Module):
    """Five layers of width 300 over 128 molecules of 25 atoms, as on ogbg-molhiv."""

    source: Tensor
    target: Tensor

    def __init__(self, layers: int = 5, width: int = 300, molecules: int = 128, atoms: int = 25) -> None:  # fmt: skip
        super().__init__()
        self.molecules, self.atoms = molecules, atoms
        nodes = molecules * atoms
        first = torch.arange(nodes).repeat(2) // atoms * atoms
        self.register_buffer("source", torch.arange(nodes).repeat(2))
        self.register_buffer("target", first + torch.randint(0, atoms, (2 * nodes,)))
        self.atom = nn.Embedding(119, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(layers)
        )  # fmt: skip
        self.head = nn.Linear(width, 1)

    def forward(self, kinds: Tensor) -> Tensor:
        x = self.atom(kinds)
        for layer in self.layers:
            x = F.relu(layer(x + torch.zeros_like(x).index_add(1, self.target, x[:, self.source])))
        return self.head(x.unflatten(1, (self.molecules, self.atoms)).mean(2))


@network("graphs", "GIN, 128 molecules")
def gin(batch: int) -> Parts:
    return Isomorphism(), torch.randint(0, 119, (batch, 128 * 25))
