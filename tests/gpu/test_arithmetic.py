"""Quotients and roots, which the generated code has a way of its own for, of numbers of all sizes."""

import pytest
import torch
from torch import Tensor, nn

import monotile

pytestmark = pytest.mark.gpu
MANY = 1 << 20


class Both(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a / b, a.sqrt()


@pytest.fixture
def chance() -> torch.Generator:
    return torch.Generator("cuda").manual_seed(0)


def test_small_within_a_unit_in_the_last_place(chance: torch.Generator) -> None:
    """Of all bit patterns: infinities, subnormals and numbers that are none among them. Twice as far where the remainder is a subnormal, which
    rounds it."""
    bits = torch.randint(-(1 << 31), 1 << 31, (2, MANY), device="cuda", generator=chance)
    a, b = bits.int().view(torch.float32)
    found = monotile.compile(Both(), (a, b))(a, b)
    for one, right in zip(found, Both()(a.double(), b.double()), strict=True):
        torch.testing.assert_close(one, right.float(), rtol=2.4e-7, atol=3e-45, equal_nan=True)
        usual = (torch.minimum(right.abs(), a.abs()) > 1e-30) & right.isfinite()
        assert (one == right.float())[usual].float().mean() > 0.9999


def test_exact_where_they_are_whole(chance: torch.Generator) -> None:
    a, b = torch.randint(1, 1000, (2, MANY), device="cuda", generator=chance).float()
    compiled = monotile.compile(Both(), (a * b, b))
    assert torch.equal(compiled(a * b, b)[0], a)
    assert torch.equal(compiled(a * a, b)[1], a)
