"""The first few of many elements, by the digits of their keys."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import monotile
from monotile.config import Options
from monotile.frontends.torch.lower.selection import MANY
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated

OPTIONS = Options(cache=False)


class First(nn.Module):
    """share: of how many elements one is selected besides `k`; 0 for no more than these."""

    def __init__(self, k: int, share: int = 0, **how: Any) -> None:
        super().__init__()
        self.k, self.share, self.how = k, share, how

    def count(self, n: int) -> int:
        return self.k + (n // self.share if self.share else 0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.topk(x, self.count(x.shape[self.how.get("dim", -1)]), **self.how))


def numbers(*shape: int) -> torch.Tensor:
    x = torch.randn(shape).round(decimals=2)
    flat = x.view(-1)
    flat[::7], flat[1::9], flat[2::11] = 0.0, -0.0, float("nan")
    flat[3], flat[4] = float("inf"), -float("inf")
    return x


CASES: dict[str, tuple[First, Callable[[], torch.Tensor]]] = {
    "greatest": (First(300), lambda: torch.randn(MANY + 5)),
    "one": (First(1), lambda: torch.randn(2, MANY)),
    "smallest of equal ones": (First(9, largest=False), lambda: torch.zeros(MANY + 40)),
    "rows": (First(70, dim=0), lambda: numbers(MANY + 1, 3)),
    "half precision": (First(1000, largest=False), lambda: numbers(MANY + 300).half()),
    "integers": (First(20), lambda: torch.randint(-3, 3, (MANY,), dtype=torch.int32)),
}


def check(fast: Callable[..., Any], model: First, x: torch.Tensor, **how: int) -> None:
    """The values are PyTorch's, in its order; of equal ones the first are taken, in their order."""
    values, places = fast(x, **how)
    d = model.how.get("dim", -1)
    assert torch.equal(_bits(values), _bits(model(x)[0]))
    assert torch.equal(_bits(x.gather(d, places)), _bits(values))
    down = model.how.get("largest", True)
    order = torch.argsort(_plain(x), dim=d, descending=down, stable=True)
    assert torch.equal(places, order.narrow(d, 0, model.count(x.shape[d])))


def _plain(x: torch.Tensor) -> torch.Tensor:
    return x.double().nan_to_num(2e300, 1e300, -1e300)


def _bits(x: torch.Tensor) -> torch.Tensor:
    """NaN as a number, and one zero."""
    return (x + 0).nan_to_num(9e3) if x.is_floating_point() else x


@pytest.mark.parametrize("name", CASES)
def test_as_pytorch(name: str) -> None:
    torch.manual_seed(0)
    model, make = CASES[name]
    x = make()
    fast = monotile.compile(model, (x,), target="cpu", options=OPTIONS)
    assert "_in_run" in fast.source
    check(fast, model, x)


@pytest.mark.parametrize("model", [First(100), First(1, share=9)], ids=["some", "a share"])
def test_any_number(model: First) -> None:
    most = MANY + 200
    fast = monotile.compile(
        model, (torch.randn(2, 500),), target="cpu", options=OPTIONS,
        dynamic_shapes=({1: Dim("n", min=100, max=most)},),
    )  # fmt: skip
    assert "_in_run" in fast.source
    for n in (100, 127, 128, 129, 1000, most):
        check(fast, model, torch.randn(2, n))


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_on_the_emulator() -> None:
    torch.manual_seed(0)
    model, x = First(40), torch.randn(MANY).half()
    fast = Emulated(model, (x,), workers=2)
    check(fast, model, x, seed=1)
