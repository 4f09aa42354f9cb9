"""States get a writer: Scatters where the old value lies, or a copy at the end."""

import msgspec
import numpy as np
import pytest

from monotile.analysis.states import scattered, waits
from monotile.errors import VerificationError
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Load, Tensor, add, const, idx, mul
from monotile.ir.program import Program, Scatter, Statement, Weight, compute, defined
from monotile.ir.verify import verify
from monotile.plan.check.structure import verify as verify_plan
from monotile.plan.places import Pointer
from monotile.transform.legalise.state_copies import insert_state_copies
from tests.schedule import programs as p

F32 = DType.F32
OLD, X = Tensor("old", (4,), F32), Tensor("x", (4,), F32)
I = Axis("i0", 2)  # noqa: E741
PUT = Scatter(Tensor("put", (4,), F32), OLD, (I,), (I,), const(1.0, F32))
WEIGHTS = (Weight(OLD, ("cache",)),)


def program(*body: Statement, result: Tensor, outputs: tuple[Tensor, ...] = ()) -> Program:
    return Program((X,), WEIGHTS, body, (*outputs, result), ("cache",))


def reader(name: str, *more: Tensor) -> Statement:
    def body(i: Axis) -> Load:
        total = Load(OLD, (i,))
        for t in more:
            total = add(total, Load(t, (i,)))
        return total

    return compute(Tensor(name, (4,), F32), body)


def out_of(s: Statement) -> Tensor:
    (t,) = defined(s)
    return t


def test_a_scatter_writes_where_the_old_value_lies() -> None:
    before = reader("before")
    given = program(before, PUT, result=PUT.out, outputs=(out_of(before),))
    assert insert_state_copies(given) == given
    ready = p.ready(given)
    assert [out_of(s).name for s in ready.body] == ["before", "put"]
    assert scattered(ready) == {"put": "old"}
    assert waits(ready) == {"put": frozenset({"before"})}
    for target in p.TARGETS:
        plan = p.plan_of(ready, target)
        assert plan.places["put"] == plan.places["old"] == (Pointer(2),)
        verify_plan(plan, ready, target)


def test_a_reader_that_stands_after_the_writer_goes_before_it() -> None:
    late = reader("late")
    given = program(PUT, late, result=PUT.out, outputs=(out_of(late),))
    assert [out_of(s).name for s in insert_state_copies(given).body] == ["late", "put"]


def test_a_reader_of_both_values_makes_it_a_copy() -> None:
    both = reader("both", PUT.out)
    ready = p.ready(program(PUT, both, result=PUT.out, outputs=(out_of(both),)))
    verify(ready)
    assert [out_of(s).name for s in ready.body] == ["old_base", "put", "both", "put_state"]
    plan = p.plan_of(ready, p.H100)
    verify_plan(plan, ready, p.H100)
    values = {"x": np.zeros(4, np.float32), "cache": np.arange(4, dtype=np.float32)}
    found, state = evaluate(ready, values)
    assert list(found) == [1, 2, 4, 6]
    assert list(state) == [1, 1, 2, 3]


def test_what_reads_elsewhere_is_done_first() -> None:
    turned = compute(
        Tensor("turned", (4,), F32), lambda i: Load(OLD, (add(idx(3), mul(idx(-1), i)),))
    )
    ready = p.ready(program(turned, result=turned.out))
    for target in p.TARGETS:
        stages = p.stages(p.plan_of(ready, target))
        assert [s.steps[0].computes for s in stages] == [("turned",), ("turned_state",)]
        assert stages[1].handoff != "none"


def test_the_verifier_sees_a_reader_that_comes_too_late() -> None:
    late = reader("late", X)
    turned = compute(
        Tensor("turned", (4,), F32), lambda i: Load(X, (add(idx(3), mul(idx(-1), i)),))
    )
    ready = p.ready(program(late, turned, result=turned.out, outputs=(out_of(late),)))
    plan = p.plan_of(ready, p.CPU)
    verify_plan(plan, ready, p.CPU)
    stages = {s.steps[0].computes[0]: s for s in p.stages(plan)}
    order = [s for name, s in stages.items() if name != "late"] + [
        msgspec.structs.replace(stages["late"], handoff="grid")
    ]
    with pytest.raises(VerificationError, match="new value"):
        verify_plan(msgspec.structs.replace(plan, body=tuple(order)), ready, p.CPU)


def test_states_that_are_not_well_formed() -> None:
    new = compute(Tensor("new", (4,), F32), lambda i: Load(X, (i,)))
    good = program(new, result=new.out)
    verify(good)
    for states in (("nothing",), ("cache", "cache")):
        with pytest.raises(VerificationError, match="state"):
            verify(Program(good.inputs, good.weights, good.body, (new.out, new.out), states[:2]))
    short = compute(Tensor("short", (3,), F32), lambda i: Load(X, (i,)))
    with pytest.raises(VerificationError, match="state 'cache' is"):
        verify(program(short, result=short.out))
