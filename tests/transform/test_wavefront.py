"""Nests become wavefronts, and mean the same."""

import pytest

from monotile.config import Options
from monotile.ir.program import Loop, Program
from monotile.transform.roll.reroll_selects import reroll_selects
from monotile.transform.roll.roll import roll
from monotile.transform.roll.skew import skew
from monotile.transform.simplify.dce import eliminate_dead_code
from tests.transform.networks import assert_same, mlp, recurrence


def skewed(p: Program) -> Program:
    q = reroll_selects(roll(p, Options()))
    r = skew(q)
    assert_same(p, r)
    return eliminate_dead_code(r)


def loops(p: Program) -> list[Loop]:
    return [s for s in p.body if isinstance(s, Loop)]


@pytest.mark.parametrize(("layers", "steps"), [(3, 5), (5, 3), (4, 4)])
@pytest.mark.parametrize("ends", [True, False])
def test_layers_of_steps(layers: int, steps: int, ends: bool) -> None:
    p = skewed(recurrence(layers, steps, step_outer=False, ends=ends))
    (wave,) = loops(p)
    assert wave.axis.extent == layers + steps - 1
    assert not any(isinstance(s, Loop) for s in wave.body)
    # Two products, and a state each for h and c.
    assert len(wave.body) == 4


def test_layers_of_no_loops_stay() -> None:
    p = roll(mlp(5), Options())
    assert skew(p) is p


@pytest.mark.parametrize(("layers", "steps"), [(3, 5), (5, 3)])
@pytest.mark.parametrize("ends", [True, False])
def test_steps_of_layers(layers: int, steps: int, ends: bool) -> None:
    p = skewed(recurrence(layers, steps, step_outer=True, ends=ends))
    (wave,) = loops(p)
    assert wave.axis.extent == layers + steps - 1
    assert len(wave.body) == 4
