"""Writes in order, whose values are asked for ahead, and packs read where data says so, on the emulator."""

import copy
import re

import pytest
import torch
from torch import Tensor, nn

from monotile.choice.chooser import Prefer
from monotile.ir.program import Scatter, statements
from monotile.kernels.elementwise.method import Map
from monotile.kernels.scatter.method import Serial
from monotile.plan.walk import stages_in
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.codegen.variants import by

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")


class Written(nn.Module):
    """Rows of `values` at `rows` of x; several may be for one row."""

    def __init__(self, add: bool) -> None:
        super().__init__()
        self.add = add

    def forward(self, x: Tensor, rows: Tensor, values: Tensor) -> Tensor:
        return x.index_put((rows,), values, accumulate=self.add)


@pytest.mark.parametrize("add", [False, True], ids=["last wins", "sums"])
@pytest.mark.parametrize("count", [16, 37])
def test_several_writes_are_asked_for_at_once(count: int, add: bool) -> None:
    x, rows, values = torch.randn(9, 5), torch.randint(0, 9, (count,)), torch.randn(count, 5)
    model = Written(add)
    fast = Emulated(model, (x, rows, values), chooser=Prefer("cut", by("serial")))
    methods = [step.method for s in stages_in(fast.plan.body) for step in s.steps]
    (serial,) = (m for m in methods if isinstance(m, Serial))
    assert serial.prefetch
    rows = torch.randint(0, 9, (count,))
    torch.testing.assert_close(fast(x, rows, values)[0], model(x, rows, values))


class Chosen(nn.Module):
    """Row `index[i]` of x, or zeros where `kept[i]` says so."""

    def forward(self, x: Tensor, index: Tensor, kept: Tensor) -> Tensor:
        return torch.where(kept[:, None], x[index], 0.0)


def test_rows_that_data_chooses_are_packs_under_a_condition() -> None:
    x, index, kept = torch.randn(9, 64), torch.randint(0, 9, (20,)), torch.rand(20) < 0.5
    fast = Emulated(Chosen(), (x, index, kept))
    assert re.search(r"Pack<float, \d>> words", fast.source.text)
    index, kept = torch.randint(0, 9, (20,)), torch.rand(20) < 0.5
    torch.testing.assert_close(fast(x, index, kept)[0], Chosen()(x, index, kept))


class Cache(nn.Module):
    """A row of keys, one for each sequence where `each`, at the positions that are given."""

    def __init__(self, each: bool) -> None:
        super().__init__()
        self.each = each
        self.register_buffer("keys", torch.zeros(3, 8, 8, 256))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        row = (x * x).unsqueeze(2)
        if self.each:
            self.keys[torch.arange(3), :, at] = row[:, :, 0]
        else:
            self.keys.index_copy_(2, at[:1], row)
        return self.keys.sum(2)


@pytest.mark.parametrize("each", [False, True])
def test_rows_are_written_in_packs(each: bool) -> None:
    x, at = torch.randn(3, 8, 256), torch.tensor([5, 0, 7])
    model = Cache(each)
    fast = Emulated(copy.deepcopy(model), (x, at))
    (row,) = (s.out.name for s in statements(fast.program.body) if isinstance(s, Scatter))
    (step,) = (step for s in stages_in(fast.plan.body) for step in s.steps if row in step.computes)
    assert isinstance(step.method, Map)
    assert step.method.vector == 4
    torch.testing.assert_close(fast(x, at)[0], model(x, at))
