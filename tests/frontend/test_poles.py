"""Beyond a dynamic size a quotient may be by 0 and a logarithm that of 0: neither reaches a result."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim

import monotile

T = torch.Tensor


def entropy(x: T, _: T) -> T:
    p = x.softmax(1)
    return (p * p.log()).sum(1)


def pooled(x: T, mask: T) -> T:
    return ((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)).mean(0)


def products(x: T, _: T) -> T:
    y = x / x.norm(dim=-1, keepdim=True)
    return y.mT @ y


CASES: dict[str, Callable[[T, T], T]] = {
    "entropy": entropy,
    "pooled": pooled,
    "products": products,
    "reciprocal": lambda x, m: (x[:, 0] * m.sum(1, keepdim=True).reciprocal()).sum(0),
    "rsqrt": lambda x, _: (x * x.pow(2).sum(-1, keepdim=True).rsqrt()).mean(1),
    "log": lambda x, _: (x * x.std(-1, keepdim=True).log()).sum(1),
    "power": lambda x, _: (x * x.abs().pow(-0.5)).sum(1),
}


class Of(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: T, mask: T) -> T:
        return CASES[self.name](x, mask)


@pytest.mark.parametrize("name", list(CASES))
def test_fewer_rows_than_there_may_be(name: str) -> None:
    rows, tokens = Dim("rows", min=1, max=3), Dim("tokens", min=1, max=6)
    sizes = ({0: rows, 1: tokens}, {0: rows, 1: tokens})
    model = Of(name).eval()
    example = torch.randn(2, 3, 5), torch.ones(2, 3)
    compiled = monotile.compile(model, example, dynamic_shapes=sizes, target="cpu")
    for n, t in ((1, 1), (2, 5), (3, 6)):
        x, mask = torch.randn(n, t, 5), torch.ones(n, t)
        torch.testing.assert_close(compiled(x, mask), model(x, mask), rtol=1e-4, atol=1e-5)


def attended(x: T, mask: T) -> T:
    keys = x[mask]
    return (x @ keys.T).softmax(1) @ keys


def weighted(x: T, mask: T) -> T:
    rows = x[mask]
    return (rows[:, :1].softmax(0) * rows).sum(0) + (rows / rows.sum(0)).sum(0)


@pytest.mark.parametrize("function", [attended, weighted])
def test_no_rows_at_all(function: Callable[[T, T], T]) -> None:
    """Their softmax has no elements, and a sum of it is 0."""
    x = torch.randn(6, 4)
    mask = torch.tensor([True, False, True, True, False, True])
    compiled = monotile.compile(function, (x, mask), target="cpu")
    for m in (mask, ~mask, mask & False):
        torch.testing.assert_close(compiled(x, m), function(x, m), rtol=1e-4, atol=1e-5)


def test_a_dynamic_size_less_one() -> None:
    def follow(x: T) -> T:
        return x[1:].softmax(0).sum(0)

    rows = Dim("rows", min=1, max=6)
    compiled = monotile.compile(follow, (torch.randn(3, 4),), dynamic_shapes=({0: rows},), target="cpu")  # fmt: skip
    for n in (1, 2, 6):
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x), follow(x))
