"""Plans with bounds of the call, and such as are broken on purpose."""

from collections.abc import Callable

import msgspec
import pytest

from monotile.config import Options
from monotile.errors import VerificationError
from monotile.ir.program import Program
from monotile.pipeline import for_target, schedule
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Bound, Plan, Stage, Step
from monotile.plan.printer import show_stages
from monotile.plan.walk import each_stage, stages_in
from monotile.targets.cpu.target import cpu_target
from monotile.targets.cuda.target import cuda_target
from monotile.targets.target import Target
from tests.transform.live_programs import attention

replace = msgspec.structs.replace
CUDA, CPU = cuda_target("sm_90a"), cpu_target(workers=2)


def made(target: Target) -> tuple[Plan, Program]:
    program, context = for_target(attention("window"), target)
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


def refused(plan: Plan, program: Program, words: str) -> None:
    with pytest.raises(VerificationError, match=words):
        verify(plan, program, CUDA)


def test_a_bound_is_read_behind_whoever_wrote_it() -> None:
    plan, program = made(CUDA)
    (first,) = (s for s in stages_in(plan.body) if any(x.bounds for x in s.steps[:1]))
    unwaited = each_stage(plan.body, lambda s: replace(s, handoff="none") if s == first else s)
    refused(replace(plan, body=unwaited), program, "reads live_")
    late = each_stage(plan.body, lambda s: replace(s, late=True) if s == first else s)
    refused(replace(plan, body=late), program, "known behind the hand-off")
    order = tuple(sorted(plan.body, key=lambda n: n != first))
    refused(replace(plan, body=order), program, "before anything wrote it")


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
