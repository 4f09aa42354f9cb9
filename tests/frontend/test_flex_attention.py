"""`torch.nn.attention.flex_attention`: functions of scores and masks of the model's own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn.attention.flex_attention import (
    BlockMask,
    and_masks,
    create_block_mask,
    flex_attention,
)

import monotile
from monotile.plan.walk import stages_in
from tests.frontend.against import check
from tests.frontend.sized import check as at_sizes

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")
T = torch.Tensor
LENGTH, BLOCK = 20, 8


def causal(_b: T, _h: T, row: T, column: T) -> T:
    return row >= column


def mask(*args: Any, rows: int = LENGTH) -> BlockMask:
    return create_block_mask(*args, rows, rows, device="cpu", BLOCK_SIZE=BLOCK)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mask = mask(causal, None, None)

    def forward(self, q: T, k: T, v: T) -> T:
        return flex_attention(q, k, v, block_mask=self.mask, enable_gqa=True)


class Biased(nn.Module):
    """A parameter that the heads index, rows without a key, and the logarithm of each row's sum."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.randn(2, 4))

    def forward(self, q: T, k: T, v: T) -> Any:
        def biased(score: T, _b: T, h: T, row: T, column: T) -> T:
            score = score + self.slope[1, h] * (row - column)
            return torch.where(column < row, score, -torch.inf)

        given = {"score_mod": biased, "enable_gqa": True, "return_lse": True, "scale": 0.3}
        return flex_attention(q.mT.contiguous().mT, k, v, **given)


class Documents(nn.Module):
    """Several in a row, each with a number of its own, and scores with a limit."""

    def forward(self, q: T, k: T, v: T, document: T) -> T:
        def same(b: T, _h: T, row: T, column: T) -> T:
            return document[b, row] == document[b, column]

        def limited(score: T, *_: T) -> T:
            return 5 * torch.tanh(score / 5)

        inside = mask(and_masks(same, causal), q.shape[0], None, rows=q.shape[2])
        found = flex_attention(q, k, v, limited, inside, enable_gqa=True)
        assert isinstance(found, T)
        return found.transpose(1, 2).flatten(2)


class Compiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mask = mask(causal, None, None)
        self.attention = torch.compile(flex_attention, backend="eager", dynamic=False)

    def forward(self, q: T, k: T, v: T) -> T:
        return self.attention(q, k, v, block_mask=self.mask, enable_gqa=True)


class Projected(nn.Module):
    """Its parameters ask for gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.mask, self.layer = mask(causal, None, None, rows=256), nn.Linear(256, 768)

    def forward(self, x: T) -> T:
        q, k, v = self.layer(x).view(1, 256, 3, 4, 64).permute(2, 0, 3, 1, 4).unbind(0)
        found = flex_attention(q, k, v, block_mask=self.mask)
        assert isinstance(found, T)
        return found.transpose(1, 2).flatten(2)


def given(batch: int = 2, length: int = LENGTH, heads: int = 2) -> tuple[T, T, T]:
    return (
        torch.randn(batch, 4, length, 8),
        torch.randn(batch, heads, length, 8),
        torch.randn(batch, heads, length, 8),
    )


@pytest.mark.parametrize("make", [Biased, Plain, Compiled])
def test_functions_of_scores(make: Callable[[], nn.Module]) -> None:
    check(make().eval().requires_grad_(False), given())


def test_documents() -> None:
    check(Documents().eval(), (*given(), torch.randint(0, 3, (2, LENGTH)).sort(-1)[0]))


def test_rows_of_a_batch_and_lengths() -> None:
    batch, length = Dim("batch", min=1, max=3), Dim("length", min=2, max=24)
    model = Biased().eval().requires_grad_(False)
    shapes = ({0: batch, 2: length},) * 3
    at_sizes(model, given, shapes, [(1, 24), (2, 7), (3, 2)])


def test_scores_stay_on_chip() -> None:
    model, x = Projected().eval().half(), torch.randn(1, 256, 256).half()
    made = monotile.compile(model, (x,), target="cuda:h200")
    steps = [s.computes for stage in stages_in(made.plan.body) for s in stage.steps]
    assert any({"masked_fill", "matmul_1"}.issubset(names) for names in steps)
