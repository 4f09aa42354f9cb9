"""Sums at positions that data chooses: of each position in the order of its terms, so the same bits in every run."""

import pytest
import torch
from torch import Tensor, nn

import monotile

pytestmark = pytest.mark.gpu


class Sums(nn.Module):
    """Rows of `x`, gathered, weighted and scattered, as messages along edges are."""

    def forward(self, x: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, target, x[source] * weight[:, None])


def drawn(
    nodes: int, edges: int, features: int, dtype: torch.dtype, *, one: bool
) -> tuple[Tensor, ...]:
    """one: all edges reach the same node."""
    x = torch.randn(nodes, features, device="cuda", dtype=dtype)
    source = torch.randint(0, nodes, (edges,), device="cuda")
    target = torch.randint(0, 1 if one else nodes, (edges,), device="cuda")
    return x, source, target, torch.rand(edges, device="cuda", dtype=dtype)


@pytest.mark.parametrize("one", [False, True], ids=["spread", "one node"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("sizes", [(2708, 13264, 64), (3200, 6400, 300), (50, 3000, 7), (9, 40, 1)])
def test_messages(sizes: tuple[int, int, int], dtype: torch.dtype, one: bool) -> None:
    given = drawn(*sizes, dtype, one=one)
    fast = monotile.compile(Sums(), given)
    given = drawn(*sizes, dtype, one=one)
    x, source, target, weight = given
    right = Sums()(x.double(), source, target, weight.double())
    got = fast(*given)
    limit = 1e-5 if dtype is torch.float32 else 1e-1 if one else 3e-3
    assert (got.double() - right).norm() <= limit * right.norm()
    for _ in range(3):
        assert torch.equal(fast(*given), got)
