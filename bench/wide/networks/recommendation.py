"""Recommendation, 128 rows for each of the batch: DLRM (Naumov et al., 2019), DeepFM (Guo et al., 2017), DCN-V2 (Wang et al., 2021),
Wide & Deep (Cheng et al., 2016), MMoE (Ma et al., 2018), DIN (Zhou et al., 2018), BST (Chen et al., 2019), two towers (Yi et al., 2019)."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from bench.wide.registry import Parts, network
from monotile.examples.mmoe import MixtureOfExperts

ROWS = 128  # for each of the batch
DENSE, SPARSE, VOCABULARY = 13, 26, 50_000  # of Criteo's click logs, the largest tables cut


def mlp(*widths: int, last: nn.Module | None = None) -> nn.Sequential:
    """Linear layers, ReLU between them, `last` behind."""
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1], *([last] if last else []))


def clicks(batch: int) -> tuple[Tensor, Tensor]:
    """Numbers [rows, 13] and categories [rows, 26]."""
    rows = ROWS * batch
    return torch.randn(rows, DENSE), torch.randint(0, VOCABULARY, (rows, SPARSE))


class Tables(nn.Module):
    """One table for each category, looked up as a bag of one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(VOCABULARY, width, mode="sum") for _ in range(SPARSE))  # fmt: skip

    def forward(self, ids: Tensor) -> Tensor:
        """[rows, 26, width]"""
        return torch.stack([t(ids[:, k : k + 1]) for k, t in enumerate(self.tables)], 1)


class DLRM(nn.Module):
    pairs: Tensor

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tables = Tables(width)
        self.bottom = mlp(DENSE, 512, 256, width, last=nn.ReLU())
        pairs = torch.tril_indices(SPARSE + 1, SPARSE + 1, -1)
        self.register_buffer("pairs", pairs[0] * (SPARSE + 1) + pairs[1])
        self.top = mlp(width + pairs.shape[1], 512, 512, 256, 1, last=nn.Sigmoid())

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        x = self.bottom(numbers)
        all_of = torch.cat([x[:, None], self.tables(ids)], 1)
        products = torch.bmm(all_of, all_of.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, products[:, self.pairs]], 1))


class DeepFM(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.tables = Tables(1), Tables(width)
        self.numbers = nn.Linear(DENSE, 1)
        self.deep = mlp(DENSE + SPARSE * width, 400, 400, 400, 1)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        v = self.tables(ids)
        pairs = (v.sum(1).square() - v.square().sum(1)).sum(1, keepdim=True) / 2
        linear = self.numbers(numbers) + self.first(ids).sum(1)
        return torch.sigmoid(linear + pairs + self.deep(torch.cat([numbers, v.flatten(1)], 1)))


class DCN(nn.Module):
    """Crosses of full rank beside the deep half."""

    def __init__(self, width: int = 32, crosses: int = 3) -> None:
        super().__init__()
        self.tables = Tables(width)
        size = DENSE + SPARSE * width
        self.crosses = nn.ModuleList(nn.Linear(size, size) for _ in range(crosses))
        self.deep = mlp(size, 768, 768, 768, last=nn.ReLU())
        self.head = nn.Linear(size + 768, 1)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        first = x = torch.cat([numbers, self.tables(ids).flatten(1)], 1)
        for cross in self.crosses:
            x = first * cross(x) + x
        return torch.sigmoid(self.head(torch.cat([x, self.deep(first)], 1)))


class WideAndDeep(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.wide, self.tables = Tables(1), Tables(width)
        self.deep = mlp(DENSE + SPARSE * width, 1024, 512, 256, 1)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        deep = self.deep(torch.cat([numbers, self.tables(ids).flatten(1)], 1))
        return torch.sigmoid(self.wide(ids).sum(1) + deep)


class DIN(nn.Module):
    """A history of 50 items, weighted by what each has to do with the candidate."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.items = nn.Embedding(100_000, width)
        self.weigh = mlp(4 * width, 80, 40, 1)
        self.head = mlp(3 * width, 200, 80, 1, last=nn.Sigmoid())

    def forward(self, history: Tensor, candidate: Tensor) -> Tensor:
        keys, query = self.items(history), self.items(candidate)
        q = query[:, None].expand_as(keys)
        weights = self.weigh(torch.cat([q, keys, q - keys, q * keys], 2))
        interest = (weights * keys).sum(1)
        return self.head(torch.cat([interest, query, interest * query], 1))


class BST(nn.Module):
    """A history of 20 items and the candidate, read by a layer of a transformer."""

    def __init__(self, width: int = 64, items: int = 21) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(100_000, width), nn.Embedding(items, width)
        self.layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, activation="relu")  # fmt: skip
        self.head = mlp(items * width, 1024, 512, 256, 1, last=nn.Sigmoid())

    def forward(self, history: Tensor, candidate: Tensor) -> Tensor:
        x = self.items(torch.cat([history, candidate[:, None]], 1)) + self.places.weight
        return self.head(self.layer(x).flatten(1))


class TwoTowers(nn.Module):
    """Scores of rows of users against a thousand items of a batch."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(200_000, width), nn.Embedding(100_000, width)
        self.user, self.item = mlp(width + DENSE, 512, 256, 128), mlp(width, 512, 256, 128)

    def forward(self, users: Tensor, about: Tensor, items: Tensor) -> Tensor:
        u = self.user(torch.cat([self.users(users), about], 1))
        v = self.item(self.items(items))
        u, v = nn.functional.normalize(u, dim=1), nn.functional.normalize(v, dim=1)
        return u @ v.T / 0.05


def ids(*shape: int) -> Tensor:
    return torch.randint(0, 100_000, shape)


@network("recommendation", "DLRM, 26 tables")
def dlrm(batch: int) -> Parts:
    return DLRM(), *clicks(batch)


@network("recommendation", "DeepFM")
def deepfm(batch: int) -> Parts:
    return DeepFM(), *clicks(batch)


@network("recommendation", "DCN-V2")
def dcn_v2(batch: int) -> Parts:
    return DCN(), *clicks(batch)


@network("recommendation", "Wide & Deep")
def wide_and_deep(batch: int) -> Parts:
    return WideAndDeep(), *clicks(batch)


@network("recommendation", "MMoE")
def mmoe(batch: int) -> Parts:
    model = MixtureOfExperts(inputs=499, experts=8, width=16, tasks=2, tower=8)
    return model, torch.randn(ROWS * batch, 499)


@network("recommendation", "DIN")
def din(batch: int) -> Parts:
    return DIN(), ids(ROWS * batch, 50), ids(ROWS * batch)


@network("recommendation", "BST")
def bst(batch: int) -> Parts:
    return BST(), ids(ROWS * batch, 20), ids(ROWS * batch)


@network("recommendation", "two towers")
def two_towers(batch: int) -> Parts:
    rows = ROWS * batch
    return TwoTowers(), ids(rows), torch.randn(rows, DENSE), ids(1024)
