"""Sizes that a call decides as keys of dictionaries, and in texts."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from monotile.errors import CaptureError
from tests.frontend.sized import Over, Sized, check

SHAPES = ({0: Dim("b", min=1, max=4), 1: Dim("l", min=1, max=16)},)
TABLE = {k: 1.5 * k for k in range(20)}
NAMED = {str(k): 1.5 * k for k in range(20)}
FEW = {3: 1.0}
KEPT: dict[Any, Tensor] = {}


def _args(b: int, n: int) -> tuple[Tensor, ...]:
    return (torch.randn(b, n, generator=torch.Generator().manual_seed(b + 7 * n)),)


@functools.lru_cache
def _places(n: int) -> Tensor:
    return torch.arange(n) * 0.5


def _kept(x: Tensor) -> Tensor:
    key = (x.shape[1], x.dtype)
    if key not in KEPT:
        KEPT[key] = torch.arange(x.shape[1]) * 1.0
    return x * KEPT[key]


class _Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if f"{n}_{x.device}" not in self.tables:
            self.tables[f"{n}_{x.device}"] = torch.arange(n) * 2.0
        return x + self.tables[f"{n}_{x.device}"]


@pytest.mark.parametrize("model", [Over(_kept), Over(lambda x: x * _places(x.shape[1])), _Keeping()])  # fmt: skip
def test_what_is_kept_for_a_size(model: nn.Module) -> None:
    model(*_args(2, 9))
    check(model, _args, SHAPES, [(1, 1), (3, 9), (4, 16)])
    assert all(isinstance(k, tuple) and type(k[0]) is int for k in KEPT)


REFUSED: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "a table": (lambda x: x * TABLE[x.shape[1]], "KeyError.*test_symbolic_keys.*is a key"),
    "get": (
        lambda x: x * TABLE.get(x.shape[1], 2.0),
        "test_symbolic_keys.*looked up in a dictionary or set",
    ),
    "in": (lambda x: x * 2 if x.shape[1] in FEW else x, "looked up in a dictionary or set"),
    "a set": (lambda x: x * 2 if x.shape[1] in {3, 4} else x, "looked up in a dictionary or set"),
    "several": (
        lambda x: {(3, 9): x}.get(tuple(x.shape), x + 1),
        "looked up in a dictionary or set",
    ),
    "hash": (lambda x: x * hash(x.shape[1]), "looked up in a dictionary or set"),
    "a text": (lambda x: x * NAMED[str(x.shape[1])], "KeyError.*test_symbolic_keys.*is in a text"),
    "get by text": (
        lambda x: x * NAMED.get(f"{x.shape[1]}", 2.0),
        "the text of a size .*determines",
    ),
    "a length": (lambda x: x * len(repr(x.shape[1])), "the text of a size .*determines"),
    "results": (lambda x: {f"x{x.shape[1]}": x + 1}, "the text of a size .*determines"),
    "in a tuple": (
        lambda x: x * 2 if x.shape[1] in (4, 9) else x,
        "test_symbolic_keys.*another size",
    ),
}


class _Known(nn.Module):
    """What it has for single sizes, the example's not among them."""

    def __init__(self, f: Callable[[Any, Tensor, Any], object]) -> None:
        super().__init__()
        self.f = f
        self.table = {"5": 2.0}
        self.name = "12 layers"
        self.modules_of = nn.ModuleDict({"5": nn.Tanh()})
        self.register_buffer("scale_5", torch.ones(()) * 3)

    def forward(self, x: Tensor) -> object:
        return self.f(self, x, x.shape[1])


KNOWN: dict[str, Callable[[Any, Tensor, Any], object]] = {
    "in": lambda m, x, n: x * m.table[str(n)] if str(n) in m.table else x,
    "get": lambda m, x, n: x * m.table.get(f"{n}", 1.0),
    "a module": lambda m, x, n: m.modules_of[str(n)](x) if str(n) in m.modules_of else x,
    "an attribute": lambda m, x, n: x * getattr(m, f"scale_{n}", 1.0),
    "startswith": lambda m, x, n: x * 2 if m.name.startswith(str(n)) else x,
    "equal": lambda m, x, n: x * 2 if str(n) == "11" else x,
    "formatted": lambda m, x, n: x * 2 if f"{n:03d}" == "011" else x,
    "a shape": lambda m, x, n: x * 2 if str(tuple(x.shape)) == "(2, 11)" else x,
    "a length": lambda m, x, n: x * 2 if len(str(n)) < 2 else x,
}


@pytest.mark.parametrize("name", KNOWN)
def test_texts_of_other_numbers_than_the_examples(name: str) -> None:
    with pytest.raises(CaptureError, match=r"the text of a size .*determines .*\(as for [\d, ]+\)"):
        Sized(_Known(KNOWN[name]), _args(3, 13), SHAPES)


def test_texts_with_words_that_no_number_of_the_model_has() -> None:
    """A key with words, beside attributes that have others; and what is printed."""

    class Keeping(_Known):
        def forward(self, x: Tensor) -> Tensor:
            print(x.shape[1])  # noqa: T201
            self.table[f"of_{x.shape[1]}"] = 1.0
            return x * self.get_buffer("scale_5")

    check(Keeping(KNOWN["in"]), _args, SHAPES, [(1, 1), (3, 9), (2, 5)])


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_number_would_decide(name: str) -> None:
    f, words = REFUSED[name]
    with pytest.raises(CaptureError, match=words):
        Sized(Over(f), _args(3, 9), SHAPES)


def test_messages_may_name_sizes() -> None:
    said: list[str] = []

    def f(x: Tensor) -> Tensor:
        said.append(f"{x.shape[1]} places")
        return x + 1

    check(Over(f), _args, SHAPES, [(1, 1), (3, 9)])
