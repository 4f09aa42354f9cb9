"""What is not scheduled yet is refused, naming the user's line."""

import pytest

from monotile.errors import ScheduleError
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Load, Unary
from monotile.ir.program import (
    Branch,
    BranchOut,
    Carry,
    Loop,
    Program,
    Statement,
    compute,
    scalar,
)
from tests.schedule import programs as p

X = p.tensor("x", 4)
FLAG, COUNT = scalar("flag", DType.BOOL), scalar("count", DType.I64)


def _branch() -> Statement:
    a, b = p.pointwise("a", X), p.pointwise("b", X, "abs")
    outs = (BranchOut(a.out, b.out, p.tensor("y", 4)),)
    return Branch(FLAG, (a,), (b,), outs, "model.py:7")


def _counted() -> Statement:
    param = p.tensor("h", 4)
    step = p.pointwise("step", param, "abs")
    carry = Carry(X, param, step.out, p.tensor("y", 4))
    return Loop(Axis("l", 3), (carry,), (), (step,), COUNT, None, "model.py:7")


def _while() -> Statement:
    param, on = p.tensor("h", 4), scalar("on", DType.BOOL)
    step = p.pointwise("step", param, "abs")
    off = compute(scalar("off", DType.BOOL), lambda: Unary("not", Load(on, ())))
    carried = (
        Carry(X, param, step.out, p.tensor("y", 4)),
        Carry(FLAG, on, off.out, scalar("end", DType.BOOL)),
    )
    return Loop(Axis("l", 3), carried, (), (step, off), None, off.out, "model.py:7")


STATEMENTS = {"branch": _branch(), "count": _counted(), "while": _while()}


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("target", p.TARGETS, ids=lambda t: t.name)
def test_it_is_refused(name: str, target: p.Target) -> None:
    program = p.ready(Program((X, FLAG, COUNT), (), (STATEMENTS[name],), (p.tensor("y", 4),)))
    with pytest.raises(ScheduleError, match=r"depends on data.*model\.py:7"):
        p.plan_of(program, target)


def test_it_is_refused_inside_a_loop() -> None:
    param = p.tensor("g", 4)
    carry = Carry(X, param, p.tensor("y", 4), p.tensor("end", 4))
    loop = Loop(Axis("m", 2), (carry,), (), (_branch(),))
    program = p.ready(Program((X, FLAG), (), (loop,), (carry.out,)))
    with pytest.raises(ScheduleError, match=r"model\.py:7"):
        p.plan_of(program, p.CPU)
