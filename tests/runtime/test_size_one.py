"""Models that do something else for some sizes: they are exported once more for these, and calls find it."""

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


def longer(x: torch.Tensor) -> torch.Tensor:
    """A path for each side of a size, as positions beyond those that were trained."""
    return x[-4:] * 2 if x.shape[0] > 4 else x + 1


def other(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(0) if x.shape[0] != 5 else x


def doubling(x: torch.Tensor) -> torch.Tensor:
    """A scan by doublings takes one more for each power of two."""
    k = 1
    while k < x.shape[0]:
        x, k = x + torch.nn.functional.pad(x, (0, 0, k, 0))[: x.shape[0]], 2 * k
    return x


def assigned(x: torch.Tensor) -> torch.Tensor:
    """Slices that are empty where there is one row."""
    y = x.clone()
    y[1:] = x[:-1] * 2
    y[: x.shape[0] // 2] = 5
    y[::2] = x[1::2].sum(0)
    return y


def both_sides(x: torch.Tensor) -> torch.Tensor:
    y = x.exp() if x.shape[1] > 3 else x
    return y[:2] if x.shape[0] > 2 else y


ROWS, COLUMNS = Dim("rows", max=6), Dim("columns", max=5)
CASES = {
    "rows": (rows, [(3, 4)], ({0: ROWS},), [(1, 4), (2, 4), (6, 4)]),
    "both": (both, [(3, 4)], ({0: ROWS, 1: COLUMNS},), [(1, 1), (1, 3), (3, 1), (6, 5)]),
    "truthy": (truthy, [(3, 4)], ({0: ROWS},), [(1, 4), (2, 4)]),
    "longer": (longer, [(3, 4)], ({0: ROWS},), [(1, 4), (4, 4), (5, 4), (6, 4)]),
    "shorter": (longer, [(6, 4)], ({0: ROWS},), [(1, 4), (4, 4), (5, 4)]),
    "other": (other, [(3, 4)], ({0: ROWS},), [(1, 4), (4, 4), (5, 4), (6, 4)]),
    "doubling": (doubling, [(6, 4)], ({0: ROWS},), [(n, 4) for n in range(1, 7)]),
    "assigned": (assigned, [(6, 4)], ({0: ROWS},), [(n, 4) for n in range(1, 7)]),
    "both sides": (
        both_sides,
        [(3, 4)],
        ({0: ROWS, 1: COLUMNS},),
        [(1, 1), (2, 5), (3, 3), (6, 4)],
    ),
}


def compiled(f: Callable[..., torch.Tensor], *given: torch.Tensor, shapes: Any = ({0: ROWS},)) -> monotile.CompiledModule:  # fmt: skip
    return monotile.compile(Of(f), given, dynamic_shapes={"given": shapes}, target="cpu", options=OPTIONS)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_some_sizes_take_another_path(name: str) -> None:
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


def test_further_sizes_that_cannot_be_compiled_are_an_error() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eig(x[:, :1] * x[:, :1].T)[0].abs() if x.shape[0] > 4 else x + 1

    fast = compiled(f, torch.randn(3, 4))
    torch.testing.assert_close(fast(x := torch.ones(4, 4)), x + 1)
    with pytest.raises(InputError, match="is 5, and the model was compiled for 1 to 4"):
        fast(torch.randn(5, 4))


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
