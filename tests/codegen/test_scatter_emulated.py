"""Writes in order, whose values are asked for ahead, and packs read where data says so, on the emulator."""

import re

import pytest
import torch
from torch import Tensor, nn

from monotile.choice.chooser import Prefer
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
