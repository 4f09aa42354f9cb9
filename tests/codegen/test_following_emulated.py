"""Products whose workers ask for a next task's operands while they store a task's sums, on the emulator."""

import math

import msgspec
import pytest

from monotile.choice.chooser import Prefer
from monotile.choice.spec import Value
from monotile.config import Options
from monotile.errors import VerificationError
from monotile.ir.dtype import DType
from monotile.kernels.matmul.method import Matmul
from monotile.pipeline import schedule
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan, Prefetch, Stage, Step
from monotile.plan.walk import each_stage
from tests.codegen.cuda_programs import linear
from tests.codegen.emulate import COMPILER
from tests.codegen.test_teams_emulated import H100, agrees
from tests.codegen.variants import by
from tests.schedule.programs import ready, stages

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
WAYS = {  # rows, columns, k, type, workers, whether results leave by rows, instruction
    "even": (256, 256, 192, DType.F16, 2, False, "wgmma"),
    "odd": (300, 128, 136, DType.BF16, 2, False, "wgmma"),
    "one-chunk": (400, 192, 64, DType.F16, 2, False, "wgmma"),
    "by-rows": (300, 197, 328, DType.F16, 2, True, "wgmma"),
    "warps": (300, 96, 264, DType.F16, 3, False, "mma"),
}


def following(plan: Plan) -> list[int]:
    """Chunks of a next task, of each product of which a worker has several."""
    return [
        s.steps[0].method.ahead("task")
        for s in stages(plan)
        if isinstance(s.steps[0].method, Matmul) and math.prod(s.grid) > plan.launch.workers
    ]


def only(instruction: str) -> Prefer:
    """Products that ask for a next task's operands, by this instruction."""

    def holds(value: Value) -> bool:
        ahead = [x for x in value["method"]["prefetch"] if x["at"] == "task"]
        return bool(ahead) and value["method"]["instruction"] == instruction

    return Prefer("blocks", holds, Prefer("cut", by("matmul")))


@pytest.mark.parametrize("name", WAYS)
def test_activation_and_residual(name: str) -> None:
    rows, n, k, dtype, workers, by_rows, instruction = WAYS[name]
    options = Options(workers=workers)
    program = ready(linear(rows, n, k, dtype))
    plan = schedule(program, H100, options, chooser=only(instruction))
    assert following(plan)
    assert all(following(plan))
    agrees(program, plan, options, by_rows=by_rows)


def test_as_many_chunks_as_the_sums_leave_room_for() -> None:
    """GPT-2's vocabulary: its first task waits late, and a chunk of 128 rows and 192 columns is 40 KiB."""
    program = ready(linear(128, 50257, 768, DType.F16))
    plan = schedule(program, H100, Options())
    assert following(plan)
    assert all(n > 0 for n in following(plan))


def test_what_the_verifier_refuses() -> None:
    program = ready(linear(6304, 2304, 64, DType.F16))
    plan = schedule(program, H100, Options())

    def with_following(chunks: int) -> Plan:
        def changed(stage: Stage) -> Stage:
            first, *rest = stage.steps
            if not isinstance(first.method, Matmul):
                return stage
            method = msgspec.structs.replace(
                first.method, prefetch=(Prefetch("both", "task", chunks),) if chunks else ()
            )
            made: Step = msgspec.structs.replace(first, method=method)
            return msgspec.structs.replace(stage, steps=(made, *rest))

        return msgspec.structs.replace(plan, body=each_stage(plan.body, changed))

    verify(with_following(0), program, H100)
    with pytest.raises(VerificationError, match="next task"):
        verify(with_following(2), program, H100)  # of one chunk
    few = ready(linear(128, 256, 512, DType.F16))
    plan = schedule(few, H100, Options())
    with pytest.raises(VerificationError, match="next task"):
        verify(with_following(1), few, H100)  # one task a worker
