"""Plans with bounds of the call, and such as are broken on purpose."""

import math
from collections.abc import Callable

import msgspec
import pytest

from monotile.config import Options
from monotile.errors import VerificationError
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Tensor, const
from monotile.ir.program import At, Program, compute
from monotile.kernels.elementwise.method import Map
from monotile.kernels.registry import read_plan
from monotile.pipeline import for_target, schedule
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Bound, Dim, Plan, Stage, Step
from monotile.plan.one_point import one_point
from monotile.plan.places import Workspace
from monotile.plan.printer import show_stages
from monotile.plan.walk import each_stage, stages_in
from monotile.targets.cpu.target import cpu_target
from monotile.targets.cuda.target import cuda_target
from monotile.targets.target import Target
from tests.transform.live_programs import attention

replace = msgspec.structs.replace
CUDA, CPU = cuda_target("sm_90a"), cpu_target(workers=2)


def made(target: Target, rows: int = 1, keys: int = 40) -> tuple[Plan, Program]:
    program, context = for_target(attention("window", rows=rows, keys=keys), target)
    return schedule(program, target, Options(workers=3), context), program


def steps(plan: Plan, change: Callable[[Step], Step]) -> Plan:
    def each(stage: Stage) -> Stage:
        return replace(stage, steps=tuple(map(change, stage.steps)))

    return replace(plan, body=each_stage(plan.body, each))


@pytest.mark.parametrize("target", [CUDA, CPU], ids=["cuda", "cpu"])
def test_every_walk_over_keys_is_bounded(target: Target) -> None:
    plan, program = made(target)
    verify(plan, program, target)
    walks = [line for line in show_stages(plan).splitlines() if "all 40" in line or "of 40" in line]
    assert walks
    assert all("in [live_first:live_end]" in line for line in walks)


@pytest.mark.parametrize(("target", "run"), [(CUDA, 128), (CPU, 32)], ids=["cuda", "cpu"])
def test_runs_of_rows_walk_their_own_keys(target: Target, run: int) -> None:
    plan, program = made(target, 300, 300)
    verify(plan, program, target)
    text = show_stages(plan)
    assert f"in [run_first[i1 // {run}]:run_end[i1 // {run}]]" in text
    assert read_plan(plan.to_json()) == plan

    def wider(x: Step) -> Step:
        at = tuple(replace(b, at=tuple((a, 2 * n) for a, n in b.at)) for b in x.bounds)
        return replace(x, bounds=at)

    with pytest.raises(VerificationError, match="is not live along"):
        verify(steps(plan, wider), program, target)


def test_tasks_within_one_run() -> None:
    """Of flattened axes as well, where no task has the end of one run and the beginning of the next."""
    anchor = compute(Tensor("x", (300, 2, 8), DType.F32), lambda *_: const(0.0, DType.F32))
    m, h, _ = anchor.axes

    def within(axis: Axis, run: int, axes: tuple[int, ...], tile: int) -> bool:
        extent = math.prod(anchor.axes[p].extent for p in axes)
        step = Step((), (Dim(axes, extent, tile, 0), Dim((2,), 8, 8, None)), Map(1))
        return one_point(step, anchor, (At(axis, run),))

    assert within(m, 128, (0,), 64)
    assert not within(m, 128, (0,), 48)
    assert within(m, 128, (0, 1), 256)
    assert not within(m, 128, (0, 1), 512)
    assert within(h, 1, (0, 1), 1)
    assert not within(h, 1, (0, 1), 2)
    assert not within(h, 3, (0, 1), 3)


def refused(plan: Plan, program: Program, words: str) -> None:
    with pytest.raises(VerificationError, match=words):
        verify(plan, program, CUDA)


def test_a_bound_is_read_behind_whoever_wrote_it() -> None:
    plan, program = made(CUDA)
    (first,) = (s for s in stages_in(plan.body) if any(x.bounds for x in s.steps[:1]))
    unwaited = each_stage(plan.body, lambda s: replace(s, handoff="none") if s == first else s)
    refused(replace(plan, body=unwaited), program, "reads live_")
    order = tuple(sorted(plan.body, key=lambda n: n != first))
    refused(replace(plan, body=order), program, "before anything wrote it")


def test_every_worker_has_the_bounds_that_it_can_compute() -> None:
    """So that their readers need no wait for them, and may find their addresses while they wait for other operands."""
    plan, program = made(CUDA)
    bounds = {n for s in stages_in(plan.body) for x in s.steps for b in x.bounds for n in (b.first, b.last)}  # fmt: skip
    assert all(b.known for s in stages_in(plan.body) for x in s.steps for b in x.bounds)
    assert {s.steps[0].computes[0] for s in stages_in(plan.body) if s.everywhere} == bounds
    elsewhere = {n: (Workspace(0),) for n in bounds}
    refused(replace(plan, places=plan.places | elsewhere), program, "what is not each worker's own")
    by_one = each_stage(plan.body, lambda s: replace(s, everywhere=False))
    refused(replace(plan, places=plan.places | elsewhere, body=by_one), program, "is behind a hand-off")  # fmt: skip


def test_only_known_bounds_are_read_early() -> None:
    plan, program = made(CUDA)

    def unknown(x: Step) -> Step:
        return replace(x, bounds=tuple(replace(b, known=False) for b in x.bounds))

    def waits(s: Stage) -> Stage:
        late = replace(s, late=True, handoff="grid")
        return late if any(x.bounds for x in s.steps[:1]) else s

    late = steps(replace(plan, body=each_stage(plan.body, waits)), unknown)
    refused(late, program, "known behind the hand-off")


def test_undefined_terms_do_not_count() -> None:
    plan, program = made(CUDA)

    def unbounded(x: Step) -> Step:
        return replace(x, bounds=()) if "total" in x.computes else x

    refused(steps(plan, unbounded), program, "total counts terms along r0 that are dead")


def test_nothing_live_is_left_out() -> None:
    plan, program = made(CUDA)

    def swapped(x: Step) -> Step:
        return replace(x, bounds=tuple(Bound(b.axis, b.last, b.first) for b in x.bounds))

    refused(steps(plan, swapped), program, "is not live along")

    def more(x: Step) -> Step:
        return replace(x, bounds=(*x.bounds, Bound("i0", "live_first", "live_end")))

    refused(steps(plan, more), program, "is not live along i0")


def test_what_need_not_be_computed_may_be() -> None:
    """Elements that nobody reads: a walk over all of them is no mistake."""
    plan, program = made(CUDA)

    def unbounded(x: Step) -> Step:
        return replace(x, bounds=()) if {"products", "powers"} & {*x.computes} else x

    verify(steps(plan, unbounded), program, CUDA)
