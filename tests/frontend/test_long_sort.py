"""Sorting of so many elements that they are not compared each with each."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim

import monotile
from monotile.config import Options
from monotile.frontends.torch.lower.long_sort import BLOCK, LONG

OPTIONS = Options(cache=False)


class Sorted(nn.Module):
    def __init__(self, f: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: torch.Tensor) -> object:
        return self.f(x)


def numbers() -> torch.Tensor:
    x = torch.randn(3, LONG + 5)
    x[0, ::7], x[1, ::3], x[1, 1::6] = float("nan"), 0.0, -0.0
    x[2, 5], x[2, 6], x[2, 7:90] = float("inf"), -float("inf"), 2.0
    return x


CASES: dict[str, tuple[Callable[[torch.Tensor], object], Callable[[], torch.Tensor]]] = {
    "ascending": (lambda x: torch.sort(x, dim=1, stable=True), numbers),
    "descending": (lambda x: torch.sort(x, dim=1, stable=True, descending=True), numbers),
    "integers": (lambda x: torch.sort(x, stable=True), lambda: torch.randint(-4, 60, (LONG + BLOCK,))),
    "first dimension": (lambda x: torch.argsort(x, dim=0, stable=True), lambda: torch.randint(0, 9, (LONG, 2))),
    "few": (lambda x: torch.topk(x, 10), lambda: torch.randn(2, LONG + 1)),
    "many": (lambda x: torch.topk(x, 300), lambda: torch.randn(2, LONG + 1)),
    "median": (lambda x: x.median(1), lambda: torch.randn(2, LONG + 300)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_pytorch(name: str) -> None:
    f, make = CASES[name]
    torch.manual_seed(0)
    x = make()
    fast = monotile.compile(Sorted(f), (x,), target="cpu", options=OPTIONS)
    for found, wanted in zip(_each(fast(x)), _each(f(x)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def _each(x: object) -> tuple[torch.Tensor, ...]:
    return (x,) if isinstance(x, torch.Tensor) else tuple(x)  # type: ignore[arg-type]


def test_any_number() -> None:
    x = torch.randint(0, 64, (LONG + 50,))
    fast = monotile.compile(
        Sorted(lambda x: torch.sort(x, stable=True)), (x,), target="cpu", options=OPTIONS,
        dynamic_shapes=({0: Dim("n", min=2, max=LONG + 600)},),
    )  # fmt: skip
    for n in (2, BLOCK - 1, BLOCK, BLOCK + 1, LONG, LONG + 600):
        x = torch.randint(0, 64, (n,))
        for found, wanted in zip(fast(x), torch.sort(x, stable=True), strict=True):
            assert torch.equal(found, wanted)
