"""Repeated stretches become Loops, and mean the same."""

import pytest

from monotile.config import Options
from monotile.ir.printer import show
from monotile.ir.program import Loop, Program, statements
from monotile.transform.roll import roll
from tests.transform.networks import assert_same, mlp, recurrence


def rolled(p: Program) -> Program:
    q = roll(p, Options())
    assert_same(p, q)
    return q


def count(p: Program) -> int:
    return sum(1 for _ in statements(p.body))


def test_layers_become_one_loop() -> None:
    small, large = rolled(mlp(3)), rolled(mlp(12))
    assert count(small) == count(large)
    (loop,) = [s for s in large.body if isinstance(s, Loop)]
    assert loop.axis.extent == 12
    assert len(loop.carried) == 1
    assert not loop.stacked


def test_off() -> None:
    p = mlp(6)
    assert roll(p, Options(roll=False)) is p


def test_nothing_to_roll() -> None:
    p = mlp(1)
    assert roll(p, Options()) is p


@pytest.mark.parametrize("step_outer", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_recurrence(step_outer: bool, ends: bool) -> None:
    p = rolled(recurrence(3, 5, step_outer=step_outer, ends=ends))
    q = rolled(recurrence(3, 10, step_outer=step_outer, ends=ends))
    print(show(p))
    assert count(p) == count(q)
