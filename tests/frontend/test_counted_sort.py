"""Sorting of many elements of few values: by counts, where the lowering knows the values."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim

import monotile
from monotile.config import Options
from monotile.frontends.torch.lower.counted_sort import BLOCK
from monotile.frontends.torch.lower.long_sort import LONG
from monotile.ir.program import Scatter, statements
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.frontend.sized import Over, Sized, same

OPTIONS = Options(cache=False)


class Sorted(nn.Module):
    def __init__(self, key: Callable[[torch.Tensor], torch.Tensor], descending: bool) -> None:
        super().__init__()
        self.key, self.descending = key, descending

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.sort(self.key(x), dim=-1, stable=True, descending=self.descending))


KEYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "choices": lambda x: torch.topk(x.reshape(-1, 32), 4).indices.reshape(-1),
    "classes": lambda x: x.reshape(-1, 4).argmax(-1).reshape(2, -1),
    "tests": lambda x: x.reshape(-1) > 0.3,
    "bytes": lambda x: (x * 100).to(torch.int8).reshape(2, -1),
    "clamped": lambda x: (x * 9).long().clamp(-5, 20).reshape(-1),
}


def _counted(fast: monotile.CompiledModule) -> bool:
    return "sort_counts" in fast.source


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("name", KEYS)
def test_as_pytorch(name: str, descending: bool) -> None:
    torch.manual_seed(0)
    model, x = Sorted(KEYS[name], descending), torch.randn(LONG // 4 + 8, 32)
    fast = monotile.compile(model, (x,), target="cpu", options=OPTIONS)
    assert _counted(fast)
    for found, wanted in zip(fast(x), model(x), strict=True):
        assert torch.equal(found, wanted)


def test_any_number() -> None:
    model = Sorted(KEYS["choices"], False)
    fast = monotile.compile(
        model, (torch.randn(50, 32),), target="cpu", options=OPTIONS,
        dynamic_shapes=({0: Dim("n", min=2, max=LONG // 2)},),
    )  # fmt: skip
    assert _counted(fast)
    for n in (2, BLOCK // 4 - 1, BLOCK // 4, BLOCK // 4 + 1, LONG // 4, LONG // 2):
        x = torch.randn(n, 32)
        for found, wanted in zip(fast(x), model(x), strict=True):
            assert torch.equal(found, wanted)


def test_unknown_values_are_compared() -> None:
    x = torch.randint(0, 64, (LONG,))
    fast = monotile.compile(Sorted(lambda x: x, False), (x,), target="cpu", options=OPTIONS)
    assert not _counted(fast)
    assert torch.equal(fast(x)[0], x.sort().values)


class Inverse(nn.Module):
    """Where each element is in the order of a sort, in both usual ways; and rows put in that order and back."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        order = torch.argsort(KEYS["choices"](x), stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(order.shape[0])
        rows = x.repeat_interleave(4, 0)
        back = torch.zeros_like(rows).index_copy(0, order, rows[order])
        return place, torch.argsort(order), back


def _same(fast: Callable[..., tuple[torch.Tensor, ...]], n: int, **how: int) -> None:
    x = torch.randn(n, 32)
    for found, wanted in zip(fast(x, **how), Inverse()(x), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("rows", [40, LONG // 4])
def test_the_inverse_of_an_order(rows: int) -> None:
    fast = monotile.compile(Inverse(), (torch.randn(rows, 32),), target="cpu", options=OPTIONS)
    _same(fast, rows)


def test_the_inverse_of_any_order() -> None:
    shapes = ({0: Dim("n", min=2, max=LONG // 2)},)
    fast = monotile.compile(Inverse(), (torch.randn(50, 32),), dynamic_shapes=shapes, target="cpu", options=OPTIONS)  # fmt: skip
    for n in (2, BLOCK // 4 + 1, LONG // 2):
        _same(fast, n)


def test_what_is_beyond_a_size_is_apart_only_where_there_is_room() -> None:
    """Neutral elements go to positions that others write to: two writes at once would lose one."""

    def added(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        order = torch.argsort(x, stable=True)
        return tuple(x.new_zeros(n).index_add(0, order, x) for n in (40, 64))

    sized = Sized(Over(added), (torch.randn(30),), ({0: Dim("n", min=2, max=64)},))
    sums = [s for s in statements(sized.captured.program.body) if isinstance(s, Scatter)]
    assert [s.distinct for s in sums if s.combiner] == [False, True]
    for n in (2, 40):
        x = torch.randn(n)
        same(sized(x), added(x))


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_the_inverse_on_the_emulator() -> None:
    fast = Emulated(Inverse(), (torch.randn(LONG // 4, 32),), workers=3)
    scatters = [s for s in statements(fast.program.body) if isinstance(s, Scatter)]
    assert len(scatters) == 4
    assert all(s.distinct for s in scatters)
    for seed in range(2):
        _same(fast, LONG // 4, seed=seed)
