"""Where tensors live: nothing that is still wanted is written over."""

import numpy as np
import pytest

from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Load, add
from monotile.ir.program import Carry, Loop, Program, Stack, Weight
from monotile.ir.verify import verify as verify_program
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan
from monotile.plan.places import Pointer, Register, Rotate, Shared, Slice, Workspace
from tests.codegen.cpu_run import Compiled, random_values
from tests.schedule import programs as p


def agrees(program: Program) -> Plan:
    """The CPU's function gives what the evaluator gives."""
    verify_program(program)
    for target in p.TARGETS:
        verify(p.plan_of(program, target), program, target)
    compiled = Compiled(program)
    values = random_values(program)
    for _ in range(2):  # the second call finds what the first one left in the workspace
        for got, want in zip(compiled(values), evaluate(program, values), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)
    return compiled.plan


def test_places_by_who_wants_a_tensor() -> None:
    x = p.tensor("x", 300, 8)
    sums = p.total("sums", x)
    roots = p.pointwise("roots", sums.out)
    most = p.total("most", roots.out, "max")
    y = p.compute(
        p.tensor("y", 300), lambda i: p.Binary("sub", Load(sums.out, (i,)), Load(most.out, ()))
    )
    plan = agrees(p.program([x], [sums, roots, most, y], y.out))
    assert plan.places["x"] == (Pointer(0),)
    assert plan.places["y"] == (Pointer(1),)
    assert any(isinstance(q, (Workspace, Shared)) for q in plan.places["sums"])


def test_what_only_its_own_step_wants_stays_in_a_register() -> None:
    x = p.tensor("x", 8)
    y = p.pointwise("y", x, "abs")
    z = p.pointwise("z", y.out, "sqrt")
    plan = p.plan_of(p.program([x], [y, z], z.out), p.H100)
    assert plan.places["y"] == (Register(),)


@pytest.mark.parametrize("target", p.TARGETS, ids=lambda t: t.name)
def test_disjoint_live_ranges_share_bytes(target: p.Target) -> None:
    x = p.tensor("x", 256, 256)
    body: list[p.Statement] = []
    for k in range(12):
        s = p.compute(p.tensor(f"t{k}", 256, 256), lambda i, j: Load(x, (j, i)))  # noqa: B023
        body.append(s)
        x = s.out
    program = p.program([p.tensor("x", 256, 256)], body, x)
    plan = p.plan_of(program, target)
    verify(plan, program, target)
    assert plan.launch.workspace_bytes <= 4 * x.nbytes


def test_a_loop_alternates_what_it_carries() -> None:
    plan = agrees(p.recurrence())
    (found, *rest) = plan.places["h"]
    assert isinstance(found, Rotate)
    assert not rest
    assert isinstance(found.first, Pointer)
    both = plan.places["y"]
    assert {type(q) for q in both} == {Rotate, Slice}


def test_a_carry_may_start_from_a_weight_in_parts() -> None:
    w, param = p.tensor("w", 3, 4), p.tensor("h", 3, 4)
    step = p.pointwise("step", param, "abs")
    loop = Loop(Axis("l", 2), (Carry(w, param, step.out, p.tensor("end", 3, 4)),), (), (step,))
    agrees(
        p.ready(Program((), (Weight(w, ("a", "b", "c"), 1),), (loop,), (p.tensor("end", 3, 4),)))
    )


def test_what_a_nested_loop_leaves_may_be_carried_and_stacked() -> None:
    x = p.tensor("x", 4)
    inner_param, outer_param = p.tensor("a", 4), p.tensor("b", 4)
    step = p.plus("step", inner_param, x)
    inner = Loop(
        Axis("n", 3), (Carry(outer_param, inner_param, step.out, p.tensor("c", 4)),), (), (step,)
    )
    outer = Loop(
        Axis("m", 2),
        (Carry(x, outer_param, p.tensor("c", 4), p.tensor("d", 4)),),
        (Stack(p.tensor("c", 4), p.tensor("e", 2, 4)),),
        (inner,),
    )
    agrees(p.program([x], [outer], p.tensor("d", 4), p.tensor("e", 2, 4)))


def test_inputs_are_not_written_over() -> None:
    program = p.update()
    compiled, values = Compiled(program), random_values(program)
    values["at"] = np.array([0, 5, 5, 2, 0])
    before = values["x"].copy()
    want = evaluate(program, values)
    for got, expected in zip(compiled(values), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    np.testing.assert_array_equal(values["x"], before)


@pytest.mark.parametrize("combiner", ["sum", "max", "prod"])
def test_updates_that_meet_are_combined(combiner: str) -> None:
    program = p.update(combiner, width=70)
    values = random_values(program) | {"at": np.array([3, 3, 3, 0, 0])}
    for got, want in zip(Compiled(program)(values), evaluate(program, values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_updates_in_a_loop_start_from_what_is_carried() -> None:
    x, param = p.tensor("x", 4), p.tensor("h", 4)
    axis, own = Axis("l", 3), Axis("i0", 1)
    value = p.Binary("add", Load(param, (p.idx(3),)), p.const(2.0, p.F32))
    new = p.Scatter(p.tensor("new", 4), param, (own,), (axis,), value)
    loop = Loop(
        axis,
        (Carry(x, param, new.out, p.tensor("end", 4)),),
        (Stack(new.out, p.tensor("every", 3, 4)),),
        (new,),
    )
    agrees(p.program([x], [loop], p.tensor("end", 4), p.tensor("every", 3, 4)))


def test_updates_one_after_the_other_share_a_place() -> None:
    x = p.tensor("x", 12)
    i = Axis("i0", 4)
    y = p.pointwise("y", x, "abs")
    first = p.Scatter(p.tensor("a", 12), y.out, (i,), (i,), p.const(7.0, p.F32))
    second = p.Scatter(p.tensor("b", 12), first.out, (i,), (add(i, p.idx(2)),), p.const(8.0, p.F32))
    plan = agrees(p.program([x], [y, first, second], second.out))
    assert plan.places["y"] == plan.places["a"] == plan.places["b"] == (Pointer(1),)
