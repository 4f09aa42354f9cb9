"""Products of each iteration with the same weights stand in front of their loop, and mean the same."""

import pytest
import torch
from torch import nn

import monotile
from monotile.config import Options
from monotile.ir.program import Compute, Loop, Program, statements
from monotile.targets.cpu.target import cpu_target
from monotile.transform.roll.distribute import distribute
from monotile.transform.roll.reroll_selects import reroll_selects
from monotile.transform.roll.roll import roll
from monotile.transform.roll.skew import skew
from tests.schedule import programs as p
from tests.transform.networks import assert_same, recurrence

pytestmark = pytest.mark.filterwarnings("ignore:RNN module weights are not part of single")


def inner(program: Program) -> Loop:
    (loop,) = (
        s
        for s in statements(program.body)
        if isinstance(s, Loop) and not any(isinstance(x, Loop) for x in s.body)
    )
    return loop


def products(loop: Loop) -> int:
    return sum(isinstance(s, Compute) and bool(s.reduce) for s in loop.body)


@pytest.mark.parametrize("ends", [True, False])
def test_a_layers_input_is_multiplied_once(ends: bool) -> None:
    before = reroll_selects(roll(recurrence(3, 5, step_outer=False, ends=ends), Options()))
    after = distribute(before)
    assert_same(before, after)
    assert products(inner(before)) == products(inner(after)) + 1


def test_steps_of_layers_share_nothing() -> None:
    """Each iteration of the inner loop has weights of its own."""
    before = reroll_selects(roll(recurrence(5, 3, step_outer=True, ends=True), Options()))
    assert distribute(before) is before


def test_a_nest_is_a_wave_where_its_weights_stay_at_hand() -> None:
    nest = reroll_selects(roll(recurrence(3, 5, step_outer=False, ends=True), Options()))
    small = cpu_target(workers=2, l2_bytes=64)
    assert skew(nest, small) is nest
    assert skew(nest, cpu_target(workers=2)) is not nest
    assert skew(nest, p.H100) is not nest


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(("both", "batch"), [(False, 1), (True, 3)])
def test_recurrent_layers_on_the_cpu(layer: type[nn.RNNBase], both: bool, batch: int) -> None:
    torch.manual_seed(0)
    model = layer(96, 160, 3, bidirectional=both).eval()
    x = torch.randn(7, batch, 96)
    options = Options(cache=False, workers=1)
    fast = monotile.compile(model, (x,), target="cpu", options=options)
    found, exact = fast(x), model.double()(x.double())
    for a, b in zip(found, exact, strict=True):
        for u, v in zip(
            a if isinstance(a, tuple) else (a,), b if isinstance(b, tuple) else (b,), strict=True
        ):
            torch.testing.assert_close(u.double(), v, rtol=1e-5, atol=1e-5)
