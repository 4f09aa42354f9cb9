"""Branches and loops that end early in a Plan: what it says of them, and what the verifier refuses."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from monotile.config import Options
from monotile.errors import VerificationError
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Load, Tensor, Unary
from monotile.ir.program import (
    Branch,
    BranchOut,
    Carry,
    Compute,
    Loop,
    Program,
    Scatter,
    Stack,
    Statement,
    compute,
    scalar,
)
from monotile.kernels.registry import read_plan
from monotile.pipeline import schedule
from monotile.plan.check.structure import verify
from monotile.plan.check.values import Owners
from monotile.plan.nodes import Body, Choose, Plan, PlanNode, Repeat, Stage
from monotile.plan.places import Final, Workspace
from monotile.plan.printer import show
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from tests.codegen.emulate import COMPILER, emulate
from tests.schedule import programs as p

X, Y = p.tensor("x", 4), p.tensor("y", 4)
FLAG, COUNT = scalar("flag", DType.BOOL), scalar("count", DType.I64)
replace = msgspec.structs.replace


def _not(name: str, of: Tensor) -> Compute:
    return compute(scalar(name, DType.BOOL), lambda: Unary("not", Load(of, ())))


def _branch() -> list[Statement]:
    wanted = _not("wanted", FLAG)
    a, b = p.pointwise("a", X), p.pointwise("b", X, "abs")
    made = p.tensor("made", 4)
    branch = Branch(scalar("wanted", DType.BOOL), (a,), (b,), (BranchOut(a.out, b.out, made),))
    return [wanted, branch, p.pointwise("y", made)]


def _counted() -> list[Statement]:
    h, end, every = p.tensor("h", 4), p.tensor("end", 4), p.tensor("every", 3, 4)
    step = p.pointwise("step", h, "abs")
    carry, stack = Carry(X, h, step.out, end), Stack(step.out, every)
    loop = Loop(Axis("l", 3), (carry,), (stack,), (step,), COUNT)
    kept = compute(
        p.tensor("kept", 4), lambda i, r: Load(every, (r, i)), reduce=(3,), combiner="sum"
    )
    return [loop, kept, p.plus("y", kept.out, end)]


def _while() -> list[Statement]:
    h, on, end = p.tensor("h", 4), scalar("on", DType.BOOL), p.tensor("end", 4)
    step, off = p.pointwise("step", h, "abs"), _not("off", on)
    carried = (
        Carry(X, h, step.out, end),
        Carry(FLAG, on, scalar("off", DType.BOOL), scalar("last", DType.BOOL)),
    )
    loop = Loop(Axis("l", 3), carried, (), (step, off), None, scalar("off", DType.BOOL))
    return [loop, p.pointwise("y", end)]


def _nested() -> list[Statement]:
    """A branch with a loop in each iteration of a loop."""
    g, h, out = p.tensor("g", 4), p.tensor("h", 4), p.tensor("out", 4)
    inner, end = p.pointwise("inner", h), p.tensor("end", 4)
    counted = Loop(Axis("m", 5), (Carry(g, h, inner.out, end),), (), (inner,), COUNT)
    a, b = p.pointwise("a", end), p.pointwise("b", g, "abs")
    branch = Branch(FLAG, (counted, a), (b,), (BranchOut(a.out, b.out, out),))
    return [Loop(Axis("l", 2), (Carry(X, g, out, Y),), (), (branch,))]


def _after_stacks() -> list[Statement]:
    """What the last loop goes on by lies in the first byte of a stack that is done with, beside what the stack's other rows left."""
    loops: list[Statement] = []
    for axis, name in ((Axis("a", 3), "rows"), (Axis("b", 3), "more")):
        row = compute(scalar(f"{name}_one", X.dtype), lambda axis=axis: Load(X, (axis,)))
        loops.append(Loop(axis, (), (Stack(row.out, p.tensor(name, 3)),), (row,)))
    off = _not("off", scalar("on", DType.BOOL))
    carry = Carry(FLAG, scalar("on", DType.BOOL), off.out, scalar("last", DType.BOOL))
    return [*loops, Loop(Axis("l", 3), (carry,), (), (off,), None, off.out), p.pointwise("y", X)]


def _while_within() -> list[Statement]:
    """What a loop carries to go on by, one inside begins with, to go on by it too; and what that leaves, one that is counted."""
    on, inside, last = (scalar(n, DType.BOOL) for n in ("on", "inside", "last"))
    end, kept = p.tensor("end", 4), p.tensor("kept", 4)
    off, over = _not("off", on), _not("over", inside)
    g, h, k = p.tensor("g", 4), p.tensor("h", 4), p.tensor("k", 4)
    inner = p.pointwise("inner", h, "abs")
    within = Loop(
        Axis("m", 3),
        (Carry(g, h, inner.out, end), Carry(on, inside, over.out, last)),
        (),
        (inner, over),
        None,
        over.out,
    )
    again, held = _not("again", scalar("next", DType.BOOL)), scalar("held", DType.BOOL)
    more = p.pointwise("more", k, "abs")
    carried = (
        Carry(end, k, more.out, kept),
        Carry(last, scalar("next", DType.BOOL), again.out, held),
    )
    counted = Loop(Axis("c", 2), carried, (), (more, again), COUNT)
    out = p.pointwise("out", kept)
    both = (Carry(X, g, out.out, Y), Carry(FLAG, on, off.out, scalar("done", DType.BOOL)))
    return [Loop(Axis("l", 3), both, (), (off, within, counted, out), None, off.out)]


def _begins_with_a_branch() -> list[Statement]:
    """What a loop goes on by begins with what a branch gives, in each iteration of a loop around."""
    go, on, last = (scalar(n, DType.BOOL) for n in ("go", "on", "last"))
    g, h, end = p.tensor("g", 4), p.tensor("h", 4), p.tensor("end", 4)
    a, b = (compute(scalar(n, DType.BOOL), lambda: Load(FLAG, ())) for n in ("a", "b"))
    branch = Branch(FLAG, (a,), (b,), (BranchOut(a.out, b.out, go),))
    step, off = p.pointwise("step", h, "abs"), _not("off", on)
    carried = (Carry(g, h, step.out, end), Carry(go, on, off.out, last))
    loop = Loop(Axis("m", 3), carried, (), (step, off), None, off.out)
    out = p.pointwise("out", end)
    return [Loop(Axis("l", 3), (Carry(X, g, out.out, Y),), (), (branch, loop, out), COUNT)]


PROGRAMS = {
    name: p.ready(Program((X, FLAG, COUNT), (), tuple(body), (Y,)))
    for name, body in {
        "branch": _branch(),
        "counted": _counted(),
        "while": _while(),
        "after stacks": _after_stacks(),
        "nested": _nested(),
        "while within": _while_within(),
        "begins with a branch": _begins_with_a_branch(),
    }.items()
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target", p.TARGETS, ids=lambda t: t.name)
def test_plans_are_valid(name: str, target: p.Target) -> None:
    plan = p.plan_of(PROGRAMS[name], target)
    verify(plan, PROGRAMS[name], target)
    assert read_plan(plan.to_json()) == plan


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("flag", [False, True])
def test_what_they_compute(name: str, flag: bool) -> None:
    program, target, options = PROGRAMS[name], cuda_target("sm_90a"), Options(workers=3)
    given = {"x": np.linspace(-1, 1, 4, dtype=np.float32), "count": np.array(2), "flag": np.array(flag)}  # fmt: skip
    plan = schedule(program, target, options)
    got = emulate(program, plan, emit(program, plan, target, options), given)
    for x, y in zip(got, evaluate(program, given), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)


def test_what_the_printer_says() -> None:
    texts = {name: show(p.plan_of(program, p.H100)) for name, program in PROGRAMS.items()}
    assert "choose by wanted, after block barrier\n  0:\n" in texts["branch"]
    assert "loop l:3, count at most, no wait" in texts["counted"]
    assert "loop l:3, while on, no wait, then after block barrier" in texts["while"]
    assert "end: in the end (workspace" in texts["while"]


def changed(name: str, change: Callable[[PlanNode], Body | PlanNode]) -> Plan:
    """The Plan with each node changed, those inside first."""

    def go(body: Body) -> Body:
        out: list[PlanNode] = []
        for node in body:
            match node:
                case Repeat():
                    node = replace(node, body=go(node.body))
                case Choose():
                    node = replace(node, bodies=tuple(map(go, node.bodies)))
                case Stage():
                    pass
            new = change(node)
            out += new if isinstance(new, tuple) else (new,)
        return tuple(out)

    plan = p.plan_of(PROGRAMS[name], p.H100)
    return replace(plan, body=go(plan.body))


def refused(name: str, plan: Plan, words: str) -> None:
    with pytest.raises(VerificationError, match=words):
        verify(plan, PROGRAMS[name], p.H100)


def _unwaited(n: PlanNode) -> PlanNode:
    return replace(n, handoff="none", **({"again": "none"} if isinstance(n, Repeat) else {}))


@pytest.mark.parametrize("name", ["branch", "while"])
def test_nobody_looks_before_the_writer_is_done(name: str) -> None:
    refused(name, changed(name, _unwaited), "looks at .* without waiting for whoever wrote it")


def test_sides_that_are_exchanged() -> None:
    plan = changed("branch", lambda n: replace(n, bodies=n.bodies[::-1]) if isinstance(n, Choose) else n)  # fmt: skip
    refused("branch", plan, "is computed in side . of wanted, in the Program in side . of wanted")


def test_a_side_that_always_runs() -> None:
    plan = changed("branch", lambda n: n.bodies[0] if isinstance(n, Choose) else n)
    refused("branch", plan, "outside all loops and branches")


@pytest.mark.parametrize(("name", "end"), [("while", {"predicate": "flag"}), ("while", {"predicate": ""}), ("counted", {"count": ""})])  # fmt: skip
def test_loops_that_end_by_something_else(name: str, end: dict[str, str]) -> None:
    plan = changed(name, lambda n: replace(n, **end) if isinstance(n, Repeat) else n)
    refused(name, plan, "its loops are")


def test_results_that_the_other_side_does_not_make() -> None:
    plan = p.plan_of(PROGRAMS["branch"], p.H100)
    (place,) = plan.places["made"]
    assert isinstance(place, Workspace)
    own = Workspace(place.offset + 256)
    places = plan.places | {"b": (own,)}
    launch = replace(plan.launch, workspace_bytes=plan.launch.workspace_bytes + 512)
    refused("branch", replace(plan, places=places, launch=launch), "b is not made where made is")


def test_results_that_lie_where_no_iteration_left_them() -> None:
    plan = p.plan_of(PROGRAMS["while"], p.H100)
    (place,) = plan.places["end"]
    assert isinstance(place, Final)
    for wrong in (place.of, place.of.places[0], Final(replace(place.of, first=None))):
        broken = replace(plan, places=plan.places | {"end": (wrong,)})
        refused("while", broken, "end does not lie where the loop over l may have left it")


def test_no_iteration_gives_what_it_would_begin_with() -> None:
    plan = p.plan_of(PROGRAMS["while"], p.H100)
    (param,), (end,) = plan.places["h"], plan.places["end"]
    assert isinstance(end, Final)
    elsewhere = replace(end.of, first=end.of.places[0])
    places = plan.places | {"h": (elsewhere,), "end": (Final(elsewhere),)}
    refused("while", replace(plan, places=places), "h does not begin where x lies")
    assert param == end.of


def _in_place() -> tuple[Program, Plan]:
    """A loop that updates a row of what it carries in each iteration."""
    held, old, new, end = (p.tensor(n, 3, 4) for n in ("held", "old", "new", "end"))
    layer, i = Axis("l", 3), Axis("i0", 4)
    first = compute(held, lambda r, c: Load(X, (c,)))
    update = Scatter(new, old, (i,), (layer, i), Load(X, (i,)))
    loop = Loop(layer, (Carry(held, old, new, end),), (), (update,))
    program = p.ready(
        Program((X,), (), (first, loop, p.pointwise("y", end)), (p.tensor("y", 3, 4),))
    )
    return program, p.plan_of(program, p.H100)


def test_what_a_loop_only_updates_has_one_place() -> None:
    _, plan = _in_place()
    (place,) = plan.places["held"]
    assert [plan.places[n] for n in ("old", "new", "end")] == [(place,)] * 3


@pytest.mark.parametrize("name", ["old", "new", "end"])
def test_updates_that_lie_elsewhere(name: str) -> None:
    program, plan = _in_place()
    launch = replace(plan.launch, workspace_bytes=plan.launch.workspace_bytes + 1024)
    places = plan.places | {name: (Workspace(plan.launch.workspace_bytes),)}
    with pytest.raises(VerificationError, match="does not lie where"):
        verify(replace(plan, places=places, launch=launch), program, p.H100)


def test_a_value_is_read_where_nobody_else_was_written_since() -> None:
    program = PROGRAMS["while"]
    owners = Owners(program, p.plan_of(program, p.H100).places)
    here, beside = ("workspace", 0, 16), ("workspace", 16, 32)
    holds = owners.written([], "step", here)
    assert owners.stranger(holds, "h", here) is None  # what the loop carries is one value
    assert owners.stranger(holds, "off", beside) is None
    assert owners.stranger(holds, "off", here) == owners.of("step")
    assert owners.stranger(owners.written(holds, "off", here), "h", here) == owners.of("off")
