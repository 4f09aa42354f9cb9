"""Sorting of very many elements, digit by digit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import monotile
from monotile.config import Options
from monotile.frontends.torch.lower.radix_sort import VAST
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated

OPTIONS = Options(cache=False)


class Sorted(nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.sort(x, stable=True, **self.how))


def numbers(n: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(n).round(decimals=1).to(dtype)
    x[::5], x[1::7], x[3], x[4] = float("nan"), -0.0, -float("inf"), float("inf")
    return x


CASES: dict[str, tuple[Sorted, Callable[[], torch.Tensor]]] = {
    "float32": (Sorted(), lambda: numbers(VAST + 3, torch.float32)),
    "bfloat16": (Sorted(descending=True), lambda: numbers(VAST, torch.bfloat16)),
    "float64": (Sorted(descending=True), lambda: numbers(2 * VAST, torch.float64)),
    "int64": (Sorted(dim=0), lambda: torch.randint(-(2**62), 2**62, (2 * VAST + 7, 2))),
    "equal": (Sorted(descending=True), lambda: torch.randint(-9, 9, (2, VAST), dtype=torch.int32)),
}


def check(fast: Callable[..., Any], model: Sorted, x: torch.Tensor, **how: int) -> None:
    (values, order), (wanted, places) = fast(x, **how), model(x)
    assert torch.equal(order, places)
    torch.testing.assert_close(values, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_as_pytorch(name: str) -> None:
    torch.manual_seed(0)
    model, make = CASES[name]
    x = make()
    fast = monotile.compile(model, (x,), target="cpu", options=OPTIONS)
    assert "_digits" in fast.source
    check(fast, model, x)


def test_any_number() -> None:
    model, most = Sorted(), VAST + 1000
    fast = monotile.compile(
        model, (torch.randn(500),), target="cpu", options=OPTIONS,
        dynamic_shapes=({0: Dim("n", min=2, max=most)},),
    )  # fmt: skip
    assert "_digits" in fast.source
    for n in (2, 31, 32, 33, 8192, 8193, most):
        check(fast, model, torch.randn(n))


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_on_the_emulator() -> None:
    torch.manual_seed(0)
    model, x = Sorted(descending=True), numbers(VAST + 1, torch.float16)
    check(Emulated(model, (x,), workers=2), model, x, seed=1)
