"""Hand-offs: as many as needed, and no more."""

from itertools import pairwise

import pytest

from monotile.ir.expr import Axis, Load
from monotile.ir.program import Scatter, Statement, compute
from monotile.kernels.elementwise.method import Map
from monotile.plan.access import access, overlap, replayed, resolve, worker_of
from monotile.plan.nodes import Handoff, Repeat, Stage, Step
from monotile.plan.places import Pointer, Workspace
from monotile.schedule.handoffs import synchronise
from tests.schedule import programs as p

WORKERS = 4


def stage(name: str, tasks: int = WORKERS) -> Stage:
    return Stage(f"stage_{name}", (tasks,), (Step((name,), (), Map()),), "none", 0)


def handoffs(
    body: list[tuple[str, str]], places: dict[str, int], tasks: dict[str, int] | None = None
) -> list[tuple[Handoff, int]]:
    """Of stages (result, operand) in order, tensors of 64 bytes at these workspace offsets."""
    made = {
        new: p.pointwise(new, p.tensor(old, 16), "abs")  # 16 floats
        for new, old in body
    }
    nodes = tuple(stage(new, (tasks or {}).get(new, WORKERS)) for new, _ in body)
    found = {n: (Workspace(at),) for n, at in places.items()} | {"x": (Pointer(0),)}
    done = synchronise(nodes, dict(made), found, WORKERS)
    return [(s.handoff, s.first) for s in done if isinstance(s, Stage)]


def kinds(*args: object) -> list[Handoff]:
    return [kind for kind, _ in handoffs(*args)]  # type: ignore[arg-type]


def test_reading_what_was_written_waits() -> None:
    assert kinds([("a", "x"), ("b", "a")], {"a": 0, "b": 64}) == ["none", "grid"]


def test_writing_over_what_was_read_waits() -> None:
    found = kinds([("a", "x"), ("b", "a"), ("c", "x")], {"a": 0, "b": 64, "c": 0})
    assert found == ["none", "grid", "grid"]


def test_writing_over_what_was_written_waits() -> None:
    assert kinds([("a", "x"), ("b", "x")], {"a": 0, "b": 32}) == ["none", "grid"]


def test_independent_stages_stand_side_by_side() -> None:
    few = {"a": 1, "b": 2, "c": 1}
    found = handoffs([("a", "x"), ("b", "x"), ("c", "x")], {"a": 0, "b": 64, "c": 128}, few)
    assert found == [("none", 0), ("none", 1), ("none", 3)]


def test_one_barrier_serves_all_that_came_before() -> None:
    places = {"a": 0, "b": 64, "c": 128, "d": 192}
    found = kinds([("a", "x"), ("b", "x"), ("c", "a"), ("d", "b")], places)
    assert found == ["none", "none", "grid", "none"]


def test_one_worker_hands_on_to_itself() -> None:
    one = {"a": 1, "b": 1}
    found = handoffs([("a", "x"), ("b", "a")], {"a": 0, "b": 64}, one)
    assert found == [("none", 0), ("block", 0)]
    assert kinds([("a", "x"), ("b", "a")], {"a": 0, "b": 64}, {"a": 1}) == ["none", "grid"]


def test_a_loop_waits_for_its_own_last_iteration() -> None:
    """The first stage reads nothing of its own iteration, and must not overrun the iteration before."""
    first, second = p.pointwise("a", p.tensor("x", 16)), p.pointwise("b", p.tensor("a", 16))
    places = {"x": (Pointer(0),), "a": (Workspace(0),), "b": (Workspace(64),)}
    computes = {s.out.name: s for s in (first, second)}
    (loop,) = synchronise(
        (Repeat("l", 3, (stage("a"), stage("b"))),), dict(computes), dict(places), WORKERS
    )
    assert isinstance(loop, Repeat)
    assert [s.handoff for s in loop.body if isinstance(s, Stage)] == ["grid", "grid"]
    (once,) = synchronise(
        (Repeat("l", 1, (stage("a"), stage("b"))),), dict(computes), dict(places), WORKERS
    )
    assert isinstance(once, Repeat)
    assert [s.handoff for s in once.body if isinstance(s, Stage)] == ["none", "grid"]


def test_a_recurrence_needs_one_barrier_a_step() -> None:
    plan = p.plan_of(p.recurrence(), p.H100)
    assert [s.handoff for s in p.stages(plan)].count("grid") <= 1


def test_updates_wait_for_their_base() -> None:
    for target in p.TARGETS:
        plan = p.plan_of(p.update(width=4000), target)
        copy, update, sums = p.stages(plan)
        assert copy.handoff == "none"
        assert update.handoff == sums.handoff == "grid"


def test_bytes() -> None:
    assert overlap(("w", 0, 8), ("w", 7, 9))
    assert not overlap(("w", 0, 8), ("w", 8, 9))
    assert not overlap(("w", 0, 8), ("v", 0, 8))
    assert resolve(Workspace(64), 8, {}) == (("workspace", 64, 72),)
    assert resolve(Workspace(64), 0, {}) == ()
    assert worker_of(stage("a", 1), WORKERS) == 0
    assert worker_of(stage("a", 2), WORKERS) is None


def test_an_empty_program_has_no_stages() -> None:
    body: list[Statement] = []
    plan = p.plan_of(p.program([p.tensor("x", 2)], body), p.H100)
    assert plan.body == ()


def test_an_entry_of_a_table_for_each_iteration() -> None:
    """What one iteration wrote of a table does not concern the next one, which reads another entry."""
    table, made, axis = p.tensor("table", 5, 16), p.tensor("made", 16), Axis("l", 5)
    read = compute(made, lambda i: Load(table, (axis, i)))
    write = Scatter(
        p.tensor("new", 5, 16), table, read.axes, (axis, *read.axes), Load(made, read.axes), None
    )
    places = {"table": (Pointer(1),), "new": (Pointer(1),), "made": (Workspace(0),)}
    for iteration in (0, 3):
        found = [
            access(stage(s.out.name), {s.out.name: s}, places, {"l": iteration}, {})
            for s in (read, write)
        ]
        entry = ("pointer 1", 64 * iteration, 64 * iteration + 64)
        assert [b for _, b in found[0].reads] == [b for _, b in found[1].writes] == [entry]
    every = access(stage("made"), {"made": read}, places, {}, {})
    assert [b for _, b in every.reads] == [("pointer 1", 0, 320)]


@pytest.mark.parametrize("extent", range(1, 9))
def test_iterations_that_stand_for_all_alternate(extent: int) -> None:
    found = replayed(Repeat("l", extent, ()))
    assert found[-1] == extent - 1
    assert all((b - a) % 2 for a, b in pairwise(found))
