"""Products of three matrices in the cheaper order."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from monotile.ir.program import Compute, Program, statements
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.models.accuracy import error, exact
from tests.transform.test_shorten import lowered

HEADS, NOPE, ROPE, WIDTH, LATENT = 4, 32, 16, 24, 64


def largest(program: Program) -> int:
    """Elements of the largest sum."""
    every = (s for s in statements(program.body) if isinstance(s, Compute) and s.combiner == "sum")
    return max(s.out.size for s in every)


class Latent(nn.Module):
    """Attention over latents that are expanded to keys, beside a rotated part, and to values."""

    def __init__(self, rotated: str) -> None:
        super().__init__()
        self.rotated = rotated
        self.expand = nn.Parameter(torch.randn(HEADS * (NOPE + WIDTH), LATENT) / 8)

    def forward(self, q: Tensor, latents: Tensor, rope: Tensor) -> Tensor:
        expanded = (latents @ self.expand.mT).view(-1, HEADS, NOPE + WIDTH).transpose(0, 1)
        keys, values = expanded.split((NOPE, WIDTH), -1)
        rope = rope.expand(HEADS, -1, -1)
        if self.rotated == "behind":
            keys = torch.cat((keys, rope), -1)
        elif self.rotated == "before":
            keys = torch.cat((rope, keys), -1)
        else:
            q = q[..., :NOPE]
        return (q @ keys.mT * 0.1).softmax(-1) @ values


def given(queries: int, positions: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    shapes = (HEADS, queries, NOPE + ROPE), (positions, LATENT), (positions, ROPE)
    return tuple(torch.randn(s).to(dtype) for s in shapes)


@pytest.mark.parametrize("rotated", ["behind", "before", "nowhere"])
def test_latents_are_not_expanded(rotated: str) -> None:
    torch.manual_seed(0)
    model, x = Latent(rotated).requires_grad_(False), given(1, 200)
    program, found = lowered(model, *x)
    assert largest(program) <= max(200, LATENT + ROPE) * HEADS
    torch.testing.assert_close(found, model(*x), rtol=1e-4, atol=1e-5)


def test_many_queries_expand_them() -> None:
    torch.manual_seed(0)
    model, x = Latent("behind").requires_grad_(False), given(64, 64)
    program, found = lowered(model, *x)
    assert largest(program) >= 64 * HEADS * (NOPE + WIDTH)
    torch.testing.assert_close(found, model(*x), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_latent_attention_emulated() -> None:
    torch.manual_seed(1)
    model = Latent("behind").bfloat16().requires_grad_(False)
    x = given(1, 96, torch.bfloat16)
    fast, right = Emulated(model, x, workers=3), exact(model, x)
    (found,) = fast(*x, seed=1)
    assert error(found, right) <= 1.5 * error(model(*x), right)


class Linear(nn.Module):
    """Attention without a softmax, in the order that costs more where there are many positions."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.masked, self.given = how.get("masked", False), how.get("given", False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        scores = q @ k.mT
        if self.masked:
            scores = scores.tril()
        return (scores @ v, scores) if self.given else scores @ v


def test_scores_are_not_computed() -> None:
    torch.manual_seed(2)
    x = tuple(torch.randn(2, 96, 8) for _ in range(3))
    program, found = lowered(Linear(), *x)
    assert largest(program) == 2 * 96 * 8
    torch.testing.assert_close(found, Linear()(*x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("how", "dtype"),
    [({"masked": True}, torch.float32), ({}, torch.float16)],
)
def test_scores_that_are_needed_are(how: dict[str, bool], dtype: torch.dtype) -> None:
    """They are masked, or are rounded to a type of a small range."""
    torch.manual_seed(3)
    x = tuple(torch.randn(2, 96, 8).to(dtype) for _ in range(3))
    program, _ = lowered(Linear(**how), *x)
    assert largest(program) == 2 * 96 * 96


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_scores_that_are_a_result_too() -> None:
    torch.manual_seed(4)
    x = tuple(torch.randn(2, 40, 8) for _ in range(3))
    found = Emulated(Linear(given=True), x, workers=3)(*x)
    for a, b in zip(found, Linear(given=True)(*x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
