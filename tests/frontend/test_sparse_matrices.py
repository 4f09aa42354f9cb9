"""Sparse matrices of PyTorch, which a model holds or makes: products with them are sums by row."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from monotile.errors import CaptureError
from monotile.frontends.torch.capture import capture
from tests.frontend.against import Of, check
from tests.frontend.sized import check as at_sizes

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
T = torch.Tensor
ROWS, COLUMNS = 6, 5


def matrix(rows: int = ROWS, columns: int = COLUMNS, seed: int = 0) -> T:
    """With an element that is given twice."""
    made = torch.Generator().manual_seed(seed)
    at = torch.stack([torch.randint(0, n, (11,), generator=made) for n in (rows, columns)])
    at[:, 1] = at[:, 0]
    return torch.sparse_coo_tensor(at, torch.randn(11, generator=made), (rows, columns))


class Held(nn.Module):
    """A buffer, an attribute of another layout, and a list of some."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.ones(3))
        self.register_buffer("graph", matrix().coalesce(), persistent=False)
        self.register_buffer("last", torch.ones(5))
        self.rows = matrix(ROWS, ROWS, 1).to_sparse_csr()
        self.powers = [matrix(COLUMNS, COLUMNS, k) for k in (2, 3)]

    def forward(self, x: T) -> Any:
        y = torch.sparse.mm(self.graph, x)
        z = self.rows @ (y * 2 + self.first)
        for power in self.powers:
            x = torch.spmm(power, x) + x
        dense = (0.5 * self.graph).to_dense()
        return z, x, torch.addmm(z, self.graph, x), self.graph.t() @ y[:, 0], dense + self.last


class Made(nn.Module):
    def forward(self, at: T, values: T, x: T) -> Any:
        graph = torch.sparse_coo_tensor(at, values, (ROWS, COLUMNS)).coalesce()
        return graph.mm(x), torch.sparse.mm(graph.t(), graph.to_dense())


class Thinned(nn.Module):
    def forward(self, mask: T, x: T) -> T:
        return (mask.relu()).to_sparse() @ x


def edges(n: int) -> tuple[T, T, T]:
    at = torch.stack([torch.randint(0, k, (n,)) for k in (ROWS, COLUMNS)])
    return at, torch.randn(n), torch.randn(COLUMNS, 3)


def test_held() -> None:
    model = Held().eval()
    names = list(dict(model.named_buffers()))
    check(model, (torch.randn(COLUMNS, 3),))
    assert list(dict(model.named_buffers())) == names
    assert model.graph.is_sparse
    assert model.rows.layout is torch.sparse_csr


def test_made_of_indices_and_values() -> None:
    check(Made().eval(), edges(9))
    shapes = ({1: Dim("edges", min=2, max=12)}, {0: Dim("edges", min=2, max=12)}, None)
    at_sizes(Made(), edges, shapes, [(2,), (7,), (12,)])


def test_made_of_what_is_not_zero() -> None:
    check(Thinned().eval(), (torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS, 3)))


def test_what_is_refused() -> None:
    graph, x = matrix(), torch.randn(COLUMNS, 3)
    with pytest.raises(CaptureError, match=r"takes a sparse tensor.*indices\(\)"):
        capture(Of(torch.sparse.mm), (graph, x))
    refused: tuple[tuple[str, Callable[[T], T]], ...] = (
        ("sin of a sparse tensor", lambda x: graph_of(x).sin()),
        ("without a size", lambda x: torch.sparse_coo_tensor(torch.zeros(2, 5) + x[0, 0].long(), x[:, 0]) @ x),
    )  # fmt: skip
    for text, function in refused:
        with pytest.raises(CaptureError, match=f"{text}.*test_sparse_matrices"):
            capture(Of(function), (x,))


def graph_of(x: T) -> T:
    return torch.sparse_coo_tensor(torch.zeros(2, COLUMNS, dtype=torch.long), x[:, 0], (5, 5))
