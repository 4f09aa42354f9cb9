"""A loop that reads a table, writes a row of it where it lies, and counts: what lies where, what waits for what, and what the verifier refuses."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from monotile.config import Options
from monotile.errors import VerificationError
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Binary, Load, add, binary, idx
from monotile.ir.program import (
    Branch,
    BranchOut,
    Carry,
    Loop,
    Program,
    Scatter,
    compute,
    scalar,
)
from monotile.pipeline import schedule
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Body, Plan, Repeat, Stage
from monotile.plan.places import Rotate, Workspace, replicas_in
from monotile.plan.walk import repeats
from monotile.targets.cuda.emit import emit
from tests.codegen.cpu_run import Compiled
from tests.codegen.emulate import COMPILER, emulate
from tests.schedule import programs as p

I64, BOOL = DType.I64, DType.BOOL
X, COUNT = p.tensor("x", 40), scalar("count", I64)
OLD, NEW = p.tensor("old", 3, 40), p.tensor("new", 3, 40)
K, NEXT, FROM = scalar("k", I64), scalar("next", I64), scalar("from", I64)
replace = msgspec.structs.replace


def _loop(*, branch: bool = False, unread: bool = False) -> Program:
    """In each of `count` iterations a row becomes the sum that all rows had an iteration before, plus `x`; or, by a branch, what lies in the row
    before, or `x`. unread: a second branch gives what nobody reads."""
    start = compute(p.tensor("start", 3, 40), lambda r, c: Load(X, (c,)))
    zero = compute(scalar("zero", I64), lambda: idx(0))
    go = compute(scalar("go", BOOL), lambda: Binary("lt", idx(0), Load(COUNT, ())))
    made, was = p.tensor("made", 40), p.tensor("was", 40)
    total = compute(p.tensor("total", 40), lambda c, r: Load(OLD, (r, c)), reduce=(3,), combiner="sum")  # fmt: skip
    at = compute(scalar("at", I64), lambda: binary("min", Load(K, ()), idx(2)))
    odd = compute(scalar("odd", BOOL), lambda: Binary("lt", idx(1), Load(at.out, ())))
    before = compute(p.tensor("before", 40), lambda c: Load(OLD, (binary("max", add(Load(at.out, ()), idx(-1)), idx(0)), binary("max", add(c, idx(-1)), idx(0)))))  # fmt: skip
    other = compute(p.tensor("other", 40), lambda c: Load(X, (c,)))
    fork = Branch(odd.out, (before,), (other,), (BranchOut(before.out, other.out, made),))
    (c,) = axes = (Axis("i0", 40),)
    row = Load(made, axes) if branch else add(Load(was, axes), Load(X, axes))
    put = Scatter(NEW, OLD, axes, (Load(at.out, ()), c), row)
    up = compute(NEXT, lambda: add(Load(K, ()), idx(1)))
    on = compute(scalar("on", BOOL), lambda: Binary("lt", Load(NEXT, ()), Load(COUNT, ())))
    carried = (
        Carry(zero.out, K, NEXT, FROM),
        Carry(go.out, scalar("going", BOOL), on.out, scalar("gone", BOOL)),
        Carry(start.out, OLD, NEW, p.tensor("end", 3, 40)),
    )
    if not branch:
        carried = (*carried, Carry(X, was, total.out, p.tensor("last", 40)))
    inner = (at, odd, fork, put, up, on) if branch else (at, put, total, up, on)
    if unread:
        left, right = (compute(p.tensor(f"{n}_side", 40), lambda c: Load(X, (c,))) for n in ("left", "right"))  # fmt: skip
        more = compute(p.tensor("more", 50), lambda c: Load(X, (binary("min", c, idx(39)),)))
        outs = (BranchOut(left.out, right.out, p.tensor("nobody", 40)),)
        inner = (at, odd, Branch(odd.out, (more, left), (right,), outs), *inner[2:])
    loop = Loop(Axis("l", 7), carried, (), inner, None, on.out)
    results = [p.pointwise(f"abs_{c.out.name}", c.out, "abs") for c in carried[2:]]
    outputs = tuple(r.out for r in results)
    return p.ready(Program((X, COUNT), (), (start, zero, go, loop, *results), outputs))


PROGRAMS = {"whole": _loop(), "branch": _loop(branch=True)}


def _values(count: int) -> dict[str, np.ndarray]:
    return {
        "x": np.random.default_rng(0).standard_normal(40).astype(np.float32),
        "count": np.array(count),
    }


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target", p.TARGETS, ids=lambda t: t.name)
def test_a_table_that_is_read_before_has_one_place(name: str, target: p.Target) -> None:
    program = PROGRAMS[name]
    plan = p.plan_of(program, target)
    assert not any("_base" in n for n in plan.places)
    (place,) = plan.places["old"]
    assert isinstance(place, Workspace)
    assert [plan.places[n] for n in ("start", "new", "end")] == [(place,)] * 3
    verify(plan, program, target)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("count", [0, 1, 2, 5, 9])
def test_what_it_computes(name: str, count: int) -> None:
    program, values = PROGRAMS[name], _values(count)
    for got, want in zip(Compiled(program)(values), evaluate(program, values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("count", [0, 1, 5])
def test_what_it_computes_on_the_emulator(name: str, count: int) -> None:
    program, values, options = PROGRAMS[name], _values(count), Options(workers=3)
    plan = schedule(program, p.H100, options)
    for seed in range(3):
        source = emit(program, plan, p.H100, options)
        for got, want in zip(emulate(program, plan, source, values, seed=seed), evaluate(program, values), strict=True):  # fmt: skip
            np.testing.assert_allclose(got, want, rtol=1e-5)


def _changed(plan: Plan, change: Callable[[Body], Body]) -> Plan:
    """With the body of the loop changed."""
    body = tuple(replace(n, body=change(n.body)) if isinstance(n, Repeat) else n for n in plan.body)
    return replace(plan, body=body)


def _makes(node: object, name: str) -> bool:
    return isinstance(node, Stage) and any(name in s.computes for s in node.steps)


@pytest.mark.parametrize("target", p.TARGETS, ids=lambda t: t.name)
def test_a_read_that_comes_too_late_is_refused(target: p.Target) -> None:
    def late(body: Body) -> Body:
        reads = next(n for n in body if _makes(n, "total"))
        assert isinstance(reads, Stage)
        return (*(n for n in body if n is not reads), replace(reads, handoff="grid"))

    with pytest.raises(VerificationError, match=r"reads old when its memory has the new value"):
        verify(_changed(p.plan_of(PROGRAMS["whole"], target), late), PROGRAMS["whole"], target)


@pytest.mark.parametrize("target", p.TARGETS, ids=lambda t: t.name)
def test_a_side_that_reads_too_late_is_refused(target: p.Target) -> None:
    def late(body: Body) -> Body:
        fork = next(n for n in body if not isinstance(n, Stage))
        put = next(n for n in body if _makes(n, "new"))
        rest = [n for n in body if n not in (fork, put)]
        return (*rest[:1], put, replace(fork, handoff="grid"), *rest[1:])

    plan = _changed(p.plan_of(PROGRAMS["branch"], target), late)
    with pytest.raises(VerificationError):
        verify(plan, PROGRAMS["branch"], target)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_update_that_does_not_wait_is_refused(name: str) -> None:
    def hasty(body: Body) -> Body:
        return tuple(replace(n, handoff="block") if isinstance(n, Stage) and _makes(n, "new") else n for n in body)  # fmt: skip

    with pytest.raises(VerificationError, match="without waiting"):
        verify(_changed(p.plan_of(PROGRAMS[name], p.H100), hasty), PROGRAMS[name], p.H100)


def test_every_worker_counts_for_itself() -> None:
    plan = p.plan_of(PROGRAMS["branch"], p.H100)
    (loop,) = repeats(plan.body)
    assert "grid" not in (loop.handoff, loop.again)
    alone = [s for s in p.stages(plan) if s.everywhere]
    made = {c for n in alone for s in n.steps for c in s.computes}
    assert made == {"zero", "go", "at", "odd", "next", "on"}
    (place,) = plan.places["k"]
    assert isinstance(place, Rotate)
    assert len(replicas_in(place)) == 3
    assert not any(s.everywhere for s in p.stages(p.plan_of(PROGRAMS["branch"], p.CPU)))


def test_what_one_makes_for_all_is_refused() -> None:
    program = PROGRAMS["branch"]
    plan = p.plan_of(program, p.H100)

    def alone(body: Body) -> Body:
        return tuple(replace(n, everywhere=False) if isinstance(n, Stage) else n for n in body)

    with pytest.raises(VerificationError, match="does not run everywhere and makes"):
        verify(_changed(plan, alone), program, p.H100)
    with pytest.raises(VerificationError, match="writes what is not each worker's own"):
        verify(replace(plan, places=plan.places | {"at": (Workspace(0),)}), program, p.H100)


def test_a_worker_waits_for_its_own_scalars() -> None:
    program = PROGRAMS["branch"]

    def hasty(body: Body) -> Body:
        return tuple(n if isinstance(n, Stage) else replace(n, handoff="none") for n in body)

    with pytest.raises(VerificationError, match="looks at odd without waiting"):
        verify(_changed(p.plan_of(program, p.H100), hasty), program, p.H100)


def test_small_values_alternate_where_that_saves_a_hand_off() -> None:
    """The side that needs nothing of the table begins while the last row is still being written."""
    plan = p.plan_of(PROGRAMS["branch"], p.H100)
    (place,) = plan.places["made"]
    assert isinstance(place, Rotate)
    assert plan.places["before"] == plan.places["other"] == (place,)
    assert not any(isinstance(q, Rotate) for q in p.plan_of(p.recurrence(), p.H100).places["product"])  # fmt: skip


def test_what_nobody_reads_of_a_branch_needs_no_place() -> None:
    """Its sides lie apart, and one of them where small values alternate."""
    program = _loop(branch=True, unread=True)
    plan = p.plan_of(program, p.H100)
    verify(plan, program, p.H100)
    assert "nobody" not in plan.places
