"""Lookups in tables, mixtures of experts, graphs, questions about whole tensors, and state that a call changes."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.zoo.small.registry import Function, Made, made, matrix, small


@small
def recommender() -> Made:
    """Embeddings of categories, sums over bags of them, and products of all pairs (DLRM)."""

    def forward(m: Function, dense: Tensor, categories: Tensor, bags: Tensor) -> Tensor:
        rows = [table(categories[:, i]) for i, table in enumerate(m.tables)]
        rows += [m.bag(bags).sum(1), m.bottom(dense)]
        x = torch.stack(rows, 1)
        i, j = torch.tril_indices(x.shape[1], x.shape[1], -1)
        return torch.sigmoid(m.top(torch.cat([rows[-1], (x @ x.mT)[:, i, j]], 1)))

    def make() -> nn.Module:
        tables = nn.ModuleList(nn.Embedding(1000 + 10 * i, 32) for i in range(6))
        bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        top = nn.Sequential(nn.Linear(60, 64), nn.ReLU(), nn.Linear(64, 1))
        return Function(forward, tables=tables, bag=nn.Embedding(500, 32), bottom=bottom, top=top)

    model, (dense,) = made(make(), (16, 13))
    return model, (dense, torch.randint(0, 1000, (16, 6)), torch.randint(0, 500, (16, 8)))


@small
def top_experts() -> Made:
    """Two of eight experts for each row."""

    def forward(m: Function, x: Tensor) -> Tensor:
        weights, chosen = torch.topk(torch.softmax(m.gate(x), -1), 2)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for k in range(2):
            hidden = F.gelu(torch.einsum("ni,nio->no", x, m.up[chosen[:, k]]))
            out = out + weights[:, k, None] * torch.einsum("ni,nio->no", hidden, m.down[chosen[:, k]])  # fmt: skip
        return out

    parts = {"up": matrix(8, 64, 128), "down": matrix(8, 128, 64)}
    return made(Function(forward, gate=nn.Linear(64, 8), **parts), (12, 64))


@small
def messages_on_a_graph() -> Made:
    """Rows added up where edges lead, three times."""

    def forward(m: Function, x: Tensor, start: Tensor, end: Tensor) -> Tensor:
        for layer in m.layers:
            sums = torch.zeros_like(x).index_add(0, end, torch.relu(layer(x))[start])
            count = torch.ones_like(x[:, 0]).index_add(0, end, torch.ones_like(end, dtype=x.dtype))
            x = torch.relu(x + sums / count[:, None])
        return x

    layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
    model, (x,) = made(Function(forward, layers=layers), (50, 32))
    return model, (x, torch.randint(0, 50, (200,)), torch.randint(0, 50, (200,)))


@small
def codebook() -> Made:
    """The nearest of a table's rows, and how far it is."""

    def forward(m: Function, x: Tensor) -> tuple[Tensor, ...]:
        far = torch.cdist(x, m.rows)
        nearest = far.argmin(-1)
        return F.embedding(nearest, m.rows), nearest, far.amin(-1), F.cosine_similarity(x, m.rows[0])  # fmt: skip

    return made(Function(forward, rows=torch.randn(64, 24)), (100, 24))


@small
def questions() -> Made:
    """Layers whose sums are clamped where anything of them is infinite, as T5's are in float16."""

    def forward(m: Function, x: Tensor) -> Tensor:
        for layer in m.layers:
            x = x + layer(x)
            x = torch.where(torch.isfinite(x).all().logical_not(), x.clamp(-4, 4), x)
            x = torch.where(torch.isinf(x).any(), x.clamp(-3, 3), x)
            x = F.layer_norm(x, (128,))
        return x

    layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(3))
    return made(Function(forward, layers=layers), (16, 128))


@small
def counter() -> Made:
    """State that a call changes: a running mean, a queue that moves on, and a count."""

    def forward(m: Function, x: Tensor) -> tuple[Tensor, ...]:
        y = m.of(x)
        m.mean.mul_(0.9).add_(0.1 * y.mean(0))
        m.queue.copy_(torch.cat([m.queue[1:], y[:1]]))
        m.count.add_(1)
        return y - m.mean, (m.queue * m.count).sum(0)

    def make() -> nn.Module:
        held = {"mean": torch.zeros(48), "queue": torch.zeros(6, 48), "count": torch.tensor(0)}
        return Function(forward, ("mean", "queue", "count"), of=nn.Linear(32, 48), **held)

    return made(make(), (4, 32))
