"""Products whose tasks teams of a worker's threads take in turn, on the emulator."""

import math

import pytest

from monotile.choice.chooser import Prefer
from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.program import Program
from monotile.kernels.matmul.method import Matmul
from monotile.pipeline import schedule
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from tests.codegen.cuda_programs import linear
from tests.codegen.emulate import COMPILER, emulate
from tests.codegen.test_cuda_emulated import check, inputs
from tests.codegen.variants import by
from tests.schedule.programs import ready, stages

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
H100 = cuda_target("sm_90a")
WAYS = {  # rows, columns, k, type, workers, whether results leave by rows
    "even": (256, 256, 192, DType.F16, 2, False),
    "odd": (300, 128, 136, DType.BF16, 2, False),
    "ragged": (150, 104, 512, DType.F16, 1, False),
    "by-rows": (200, 197, 72, DType.F16, 2, True),
}

IN_TEAMS = Prefer(
    "blocks", lambda value: value["method"]["tasks_at_once"] > 1, Prefer("cut", by("matmul"))
)


def teams(plan: Plan) -> set[tuple[int, bool]]:
    """How many of each product, and whether a worker has several tasks."""
    return {
        (s.steps[0].method.teams, math.prod(s.grid) > plan.launch.workers)
        for s in stages(plan)
        if isinstance(s.steps[0].method, Matmul)
    }


def agrees(program: Program, plan: Plan, options: Options, *, by_rows: bool) -> None:
    """Runs `plan`, whose results leave by rows or not, with copies as late as they may be and at once; compares with the evaluator."""
    verify(plan, program, H100)
    source = emit(program, plan, H100, options)
    assert ("mt::unaligned_stores(" in source.text) == by_rows
    values = inputs(program)
    right = evaluate(program, values)
    for late in (True, False):
        got = emulate(program, plan, source, values, late=late, seed=int(late))
        check(program, got, right)


@pytest.mark.parametrize("name", WAYS)
def test_activation_and_residual(name: str) -> None:
    rows, n, k, dtype, workers, by_rows = WAYS[name]
    options = Options(workers=workers)
    program = ready(linear(rows, n, k, dtype))
    plan = schedule(program, H100, options, chooser=IN_TEAMS)
    assert teams(plan) == {(2, True)}
    agrees(program, plan, options, by_rows=by_rows)


def test_they_are_for_several_rounds() -> None:
    """One task a worker, or a few more, are done sooner by all of its threads."""
    few, many = (
        schedule(ready(linear(m, 3072, 768, DType.F16)), H100, Options()) for m in (512, 6304)
    )
    assert teams(few) == {(1, False)}
    assert teams(many) == {(2, True)}


def test_a_profile_has_the_tasks_of_teams_as_one() -> None:
    program = ready(linear(256, 256, 128, DType.F16))
    options = Options(workers=2, profile=True)
    plan = schedule(program, H100, options, chooser=IN_TEAMS)
    text = emit(program, plan, H100, options).text
    assert teams(plan) == {(2, True)}
    assert text.count("mt_profile_end(profile, blockIdx.x, 0, first)") == 1
