"""What a profiled kernel writes down: everything, in order, and no more than there is room for."""

import itertools

import numpy as np
import pytest

from monotile.config import Options
from monotile.ir.evaluate import evaluate
from monotile.ir.program import Program
from monotile.pipeline import schedule
from monotile.plan import records
from monotile.plan.nodes import Plan
from monotile.runtime.profile import Profile, decode
from monotile.targets.cpu import emit as cpu
from monotile.targets.cpu.target import cpu_target
from monotile.targets.cuda import emit as cuda
from monotile.targets.cuda.target import cuda_target
from tests.codegen.cuda_programs import every
from tests.codegen.emulate import COMPILER, launch, launch_of
from tests.codegen.test_cuda_emulated import inputs

OPTIONS = Options(workers=3, profile=True, cache=False)
emulated = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")


def on_emulator(program: Program, plan: Plan) -> tuple[Profile, list[np.ndarray]]:
    source = cuda.emit(program, plan, cuda_target("sm_90a"), OPTIONS)
    values = inputs(program)
    before = [values[n] for n in plan.inputs]
    outputs = [np.zeros(t.nbytes, np.uint8) for t in program.results]
    arrays = [*before, *outputs, *(values[n] for n in plan.weights)]
    memory = np.zeros(records.words(plan), np.uint64)
    results = [*range(len(before), len(before) + len(outputs)), len(arrays)]
    *found, held = launch(
        source.text,
        [*arrays, memory],
        launch_of(plan),
        late=True,
        seed=0,
        results=results,
    )
    got = [b[: t.nbytes].view(t.dtype.numpy) for b, t in zip(found, program.results, strict=True)]
    return decode(plan, held[: memory.nbytes].view(np.uint64)), got


def check(profile: Profile, plan: Plan) -> None:
    """Every task once; a worker's records one after the other; after a barrier of the grid nothing that was before it."""
    assert profile.dropped == 0
    workers = plan.launch.workers
    for number, r in enumerate(records.recorded(plan)):
        rounds = list(np.ndindex(*r.extents))
        tasks = int(np.prod(r.stage.grid))
        mine = [x for x in profile.records if x.stage == r.stage.name and x.kind == "task"]
        assert sorted((x.iteration, x.task) for x in mine) == [
            (place, task) for place in rounds for task in range(tasks)
        ], number
        assert all(x.worker == (r.stage.first + x.task) % workers for x in mine)
        if r.stage.handoff == "grid":
            for place in rounds:
                same = [
                    x
                    for x in profile.records
                    if x.stage == r.stage.name and x.iteration == place and x.kind == "wait"
                ]
                assert len(same) == workers
                passed = max(x.start for x in same)
                assert all(x.end > passed for x in same)
    for w in range(workers):
        own = [x for x in profile.records if x.worker == w]
        assert all(x.end >= x.start >= 0 for x in own)
        assert all(a.end <= b.start for a, b in itertools.pairwise(own))


@emulated
def test_cuda() -> None:
    program = every()["recurrence_f32"]
    plan = schedule(program, cuda_target("sm_90a"), OPTIONS)
    profile, got = on_emulator(program, plan)
    check(profile, plan)
    for a, b in zip(got, evaluate(program, inputs(program)), strict=True):
        assert np.allclose(a.reshape(b.shape), b, rtol=1e-2, atol=1e-2)


@emulated
def test_records_without_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    program = every()["recurrence_f32"]
    plan = schedule(program, cuda_target("sm_90a"), OPTIONS)
    whole, _ = on_emulator(program, plan)
    monkeypatch.setattr(records, "MOST", 2)
    few, _ = on_emulator(program, plan)
    assert len(few.records) + few.dropped == len(whole.records)
    assert len(few.records) <= 2 * plan.launch.workers
    assert few.dropped


def test_without_the_option_there_is_no_trace_of_it() -> None:
    program = every()["recurrence_f32"]
    for emit, target in ((cuda.emit, cuda_target("sm_90a")), (cpu.emit, cpu_target(workers=2))):
        plan = schedule(program, target, Options())
        assert "profile" not in emit(program, plan, target, Options()).text
