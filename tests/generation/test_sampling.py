"""The choice of a token: its random numbers, what each control leaves, and how often each token comes."""

import math
import random

import pytest
import torch
from torch import Tensor, nn
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import monotile
from monotile.generation.sampling import Controls, bits, choose, uniform
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated

WORDS = 40


def number(n: int) -> Tensor:
    return torch.tensor(n)


def controls(temperature: float = 1.0, top_p: float = 1.0, min_p: float = 0.0, penalty: float = 1.0) -> Tensor:  # fmt: skip
    out = torch.zeros(Controls.COUNT)
    out[Controls.TEMPERATURE], out[Controls.TOP_P] = temperature, top_p
    out[Controls.MIN_P], out[Controls.PENALTY] = min_p, penalty
    return out


class Choice(nn.Module):
    def forward(self, logits: Tensor, seen: Tensor, c: Tensor, k: Tensor, seed: Tensor, step: Tensor) -> Tensor:  # fmt: skip
        return choose(logits, seen, c, k, seed, step)


def test_every_number_is_drawn_once() -> None:
    many = torch.stack([bits(number(s), number(n), 5, 9) for s in (0, -1) for n in (0, 1, 1 << 40)])
    assert many.unique().numel() == many.numel()


def test_numbers_lie_between_0_and_1() -> None:
    x = uniform(number(3), number(9), 200_000).double()
    assert 0 < x.min() <= x.max() < 1
    assert abs(float(x.mean()) - 0.5) < 5 / math.sqrt(12 * len(x))
    assert torch.isfinite(torch.log(-torch.log(uniform(number(3), number(9), 200_000)))).all()


def kept(logits: Tensor, c: Tensor, k: int) -> set[int]:
    """The tokens that come in many draws."""
    found = (choose(logits, torch.zeros(1, dtype=torch.int64), c, number(k), number(1), number(n)) for n in range(300))  # fmt: skip
    return {int(x) for x in found}


def test_what_each_control_leaves() -> None:
    logits = torch.linspace(0, 2, 20)
    p = logits.softmax(0)
    assert kept(logits, controls(), 3) == {17, 18, 19}
    assert kept(logits, controls(top_p=float(p[18] + p[19]) - 1e-4), 0) == {18, 19}
    assert kept(logits, controls(top_p=1e-6), 0) == {19}
    assert kept(logits, controls(min_p=float(p[18] / p[19]) - 1e-4), 0) == {18, 19}
    assert len(kept(logits, controls(temperature=4.0), 0)) == 20
    assert kept(logits, controls(temperature=0.0), 0) == {19}


@pytest.mark.parametrize("rows", [1, 3])
def test_a_draw_is_from_what_transformers_keeps(rows: int) -> None:
    """The noise decides among those that its processors leave, one after the other."""
    torch.manual_seed(3)
    draw, shape = random.Random(3), (rows, 2000)
    ids = torch.zeros(rows, 1, dtype=torch.int64)
    for n in range(40):
        logits = torch.randn(shape) * draw.choice((0.1, 1.0, 8.0))
        logits[torch.rand(shape) < 0.1] = float("-inf")
        t, p, m = draw.choice((0.5, 1.0, 3.0)), draw.choice((1.0, 0.3, 0.95)), draw.choice((0.0, 0.02))  # fmt: skip
        k = draw.choice((0, 1, 50, 1999, 3000))
        scores: Tensor = logits / t
        if k > 0:
            scores = TopKLogitsWarper(k)(ids, scores)
        scores = MinPLogitsWarper(m)(ids, TopPLogitsWarper(p)(ids, scores))
        right = (scores - torch.log(-torch.log(uniform(number(7), number(n), *shape)))).argmax(-1)
        given = (logits, ids) if rows > 1 else (logits[0], ids[0])
        found = choose(*given, controls(t, p, m), number(k), number(7), number(n))
        assert torch.equal(found.reshape(rows), right), (n, t, p, m, k)


def test_the_penalty_is_for_what_was_seen() -> None:
    logits = torch.tensor([1.0, -1.0, 3.0, 2.9])
    seen = torch.tensor([2, 2, 1])
    args = controls(temperature=0.0, penalty=1.5), number(0), number(0), number(0)
    assert int(choose(logits, seen, *args)) == 3
    assert int(choose(logits, torch.tensor([3, 1, 1]), *args)) == 2


def test_tokens_come_as_often_as_they_should() -> None:
    """Pearson's chi-square, against the exact probabilities, at a level of one in a million."""
    torch.manual_seed(0)
    logits, draws = torch.randn(8), 4000
    c, seen = controls(temperature=0.8), torch.zeros(1, dtype=torch.int64)
    fast = monotile.compile(Choice(), (logits, seen, c, number(0), number(0), number(0)), target="cpu")  # fmt: skip
    counts = torch.zeros(8)
    for n in range(draws):
        counts[fast(logits, seen, c, number(0), number(7), number(n))] += 1
    expected = draws * (logits / 0.8).softmax(0)
    assert float(((counts - expected) ** 2 / expected).sum()) < 40.5


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_both_targets_draw_alike() -> None:
    torch.manual_seed(1)
    logits, seen = torch.randn(WORDS), torch.tensor([3, 4])
    shape = (logits, seen, controls(), number(0), number(0), number(0))
    cpu = monotile.compile(Choice(), shape, target="cpu", options=monotile.Options(cache=False))
    cuda = Emulated(Choice(), shape)
    for n, (c, k) in enumerate([(controls(0.7, 0.9), 0), (controls(1.3, penalty=1.2), 9), (controls(0.0), 0), (controls(1.0, min_p=0.1), 0), (controls(1.1, 0.8), 7)]):  # fmt: skip
        args = (logits, seen, c, number(k), number(5), number(n))
        right = choose(*args)
        assert int(cpu(*args)) == int(right)
        assert int(cuda(*args, seed=n)[0]) == int(right)
