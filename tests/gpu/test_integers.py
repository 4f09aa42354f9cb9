"""Sums of products of 8-bit integers on tensor cores: exact, at the limit of what float32 sums too."""

import pytest
import torch

import monotile
from tests.transform.test_narrow_products import CASES, Product, integers

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("rows", [16, 200])
@pytest.mark.parametrize("name", CASES)
def test_exact(name: str, rows: int) -> None:
    k, left, right, value = CASES[name]
    model, x = Product(k, 136, right, value).cuda(), integers((rows, k), left, value).cuda()
    fast = monotile.compile(model, (x,))
    for _ in range(3):
        assert torch.equal(fast(x), model(x))
        x = x.roll(1, 0) if value is not None else integers((rows, k), left).cuda().flip(1)
