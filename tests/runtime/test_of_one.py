"""Models that do something else where a size is 1: they are exported once more for that, and calls find it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import monotile
from monotile.errors import InputError
from tests.runtime.asserting import Asserting

OPTIONS = monotile.Options(cache=False)


class Of(nn.Module):
    def __init__(self, f: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return self.f(*given)


def rows(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] == 1 else x + 1


def both(x: torch.Tensor) -> torch.Tensor:
    """What it computes depends on each of two sizes."""
    y = x.cumsum(1) if x.shape[1] > 1 else x - 3
    return y.mean(0, keepdim=True) if x.shape[0] > 1 else y


def derived(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The second is one longer than twice the first."""
    return y[1:].unflatten(0, (2, -1)) + x if x.shape[0] > 1 else y.sum(0) - x


def truthy(x: torch.Tensor) -> torch.Tensor:
    return x.exp() if x.shape[0] - 1 else x.neg()


ROWS, COLUMNS = Dim("rows", max=6), Dim("columns", max=5)
CASES = {
    "rows": (rows, [(3, 4)], ({0: ROWS},), [(1, 4), (2, 4), (6, 4)]),
    "both": (both, [(3, 4)], ({0: ROWS, 1: COLUMNS},), [(1, 1), (1, 3), (3, 1), (6, 5)]),
    "truthy": (truthy, [(3, 4)], ({0: ROWS},), [(1, 4), (2, 4)]),
}


def compiled(f: Callable[..., torch.Tensor], *given: torch.Tensor, shapes: Any = ({0: ROWS},)) -> monotile.CompiledModule:  # fmt: skip
    return monotile.compile(Of(f), given, dynamic_shapes={"given": shapes}, target="cpu", options=OPTIONS)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_size_of_one_is_another_course(name: str) -> None:
    f, example, shapes, calls = CASES[name]
    fast = compiled(f, *(torch.randn(n) for n in example), shapes=shapes)
    for size in calls:
        x = torch.randn(size)
        torch.testing.assert_close(fast(x), f(x))


def test_sizes_that_follow_from_it() -> None:
    shapes = ({0: ROWS}, {0: 2 * ROWS + 1})
    fast = compiled(derived, torch.randn(3, 4), torch.randn(7, 4), shapes=shapes)
    for n in (1, 2, 6):
        args = torch.randn(n, 4), torch.randn(2 * n + 1, 4)
        torch.testing.assert_close(fast(*args), derived(*args))


def test_saved(tmp_path: Path) -> None:
    fast = compiled(rows, torch.randn(3, 4))
    fast.save(tmp_path / "model")
    again = monotile.load(tmp_path / "model")
    for n in (1, 2):
        x = torch.randn(n, 4)
        torch.testing.assert_close(again(x), rows(x))


def test_what_is_not_exported_for_one_is_an_error() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            raise ValueError("at least two rows, please")
        return x + 1

    fast = compiled(f, torch.randn(3, 4))
    with pytest.raises(InputError, match=r"!= 1, which does not hold where .* = 1"):
        fast(torch.randn(1, 4))


def test_beside_a_branch_on_data() -> None:
    """Where the model is exported once for each way, and put together."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 if x.sum() > 0 else x - 1
        return y + 5 if x.shape[0] == 1 else y

    fast = compiled(f, torch.randn(3, 4))
    for n in (1, 2):
        for x in (torch.rand(n, 4), -torch.rand(n, 4)):
            torch.testing.assert_close(fast(x), f(x))


def test_libraries_whose_names_begin_as_pytorchs_are_models() -> None:
    where = f"{os.path.dirname(torch.__file__)}vision/models.py"
    names: dict[str, Any] = {}
    exec(compile("def f(x): return x * 2 if x.shape[0] == 1 else x + 1", where, "exec"), names)
    fast = compiled(names["f"], torch.randn(3, 4))
    for n in (1, 2):
        x = torch.randn(n, 4)
        torch.testing.assert_close(fast(x), rows(x))


def test_an_assertion_on_data_is_no_branch() -> None:
    """PyTorch finds it by the frame that asks."""

    x = torch.arange(4)
    fast = monotile.compile(Asserting(), (x,), target="cpu", options=OPTIONS)
    torch.testing.assert_close(fast(x), x + 1)
