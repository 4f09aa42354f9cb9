"""Bounds of the call in kernels: the same results as without, at any position, and nothing that is dead is read."""

import numpy as np
import pytest

from monotile.choice.chooser import Prefer
from monotile.choice.spec import Value
from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.program import Program
from monotile.kernels.attention.method import Attend
from monotile.kernels.matmul.method import Matmul
from monotile.pipeline import for_target, schedule
from monotile.plan.check.structure import verify
from monotile.plan.walk import stages_in
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from tests.codegen.cpu_run import TARGET, Compiled
from tests.codegen.emulate import COMPILER, emulate
from tests.conftest import wide
from tests.transform.live_programs import FORMS, Array, attention, values

CUDA = cuda_target("sm_90a")
OPTIONS = Options(workers=3)
POSITIONS = (0, 1, 7, 23, 38, 39, 100)
emulated = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")


def check(program: Program, given: dict[str, Array], found: Array, limit: float) -> None:
    """The kernel was given NaN where the evaluator, which computes everything, gets zeros."""
    clean = {n: np.nan_to_num(x) if n in ("k", "v") else x for n, x in given.items()}
    with np.errstate(all="ignore"):
        (wanted,) = evaluate(program, clean)
    wanted = wanted.astype(np.float64)
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=limit, atol=limit)


def dirty(given: dict[str, Array], keys: int = 40, chunk: int = 1) -> dict[str, Array]:
    """With NaN behind the last chunk of which any row sees a key; one key is live where none sees any."""
    last = max(int(given["position"].max()), int(given.get("start", np.zeros(1)).max()))
    out = {n: x.copy() for n, x in given.items()}
    for name in ("k", "v"):
        end = int(np.clip(last, 0, keys - 1)) + 1
        out[name][:, -(-end // chunk) * chunk :] = np.nan
    return out


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, wide(3), 24])
def test_on_the_cpu(form: str, rows: int) -> None:
    """By dot products, and by tiles."""
    program = attention(form, rows=rows)
    bound, _ = for_target(program, TARGET)
    compiled = Compiled(bound)
    steps = [x for s in stages_in(compiled.plan.body) for x in s.steps]
    assert any(x.bounds for x in steps)
    assert any(isinstance(x.method, Matmul) and x.bounds for x in steps) == (rows == 24)
    for position in POSITIONS:
        given = dirty(values(program, position, start=2))
        check(program, given, compiled(given)[0], 1e-4)


@emulated
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 3])
def test_on_the_emulator(form: str, rows: int) -> None:
    program = attention(form, rows=rows)
    bound, context = for_target(program, CUDA)
    plan = schedule(bound, CUDA, OPTIONS, context)
    verify(plan, bound, CUDA)
    source = emit(bound, plan, CUDA, OPTIONS)
    for position in POSITIONS:
        given = dirty(values(program, position, start=2))
        (found,) = emulate(bound, plan, source, given, late=position % 2 == 0, seed=position)
        check(program, given, found, 1e-4)


@emulated
def test_rounds_of_several_heads() -> None:
    """A task with several heads leaves out rounds that are dead."""
    program = attention("window", batch=4, keys=2048)
    bound, context = for_target(program, CUDA)
    plan = schedule(bound, CUDA, OPTIONS, context)
    source = emit(bound, plan, CUDA, OPTIONS)
    assert ") continue;" in source.text
    for position in (0, 1030, 2047):
        given = dirty(values(program, position), 2048, 16)
        (found,) = emulate(bound, plan, source, given, late=False, seed=position)
        check(program, given, found, 1e-4)


def cut_by(instruction: str, block_m: int, chunk: int) -> Prefer:
    def holds(value: Value) -> bool:
        method = value["steps"][0]["method"]
        own = [method.get(x) for x in ("instruction", "block_m", "chunk")]
        return own == [instruction, block_m, chunk]

    return Prefer("cut", holds)


@emulated
@pytest.mark.parametrize("form", ["plain", "window", "capped"])
@pytest.mark.parametrize(
    ("instruction", "block_m", "chunk"),
    [("mma", 32, 32), ("wgmma", 64, 64), ("wgmma", 128, 64)],
)
def test_streamed_on_the_emulator(form: str, instruction: str, block_m: int, chunk: int) -> None:
    """On tensor cores, chunks of keys that no row sees are left out."""
    program = attention(form, rows=96, keys=320, size=64, dtype=DType.F16)
    chooser = cut_by(instruction, block_m, chunk)
    bound, context = for_target(program, CUDA, chooser=chooser)
    plan = schedule(bound, CUDA, OPTIONS, context)
    verify(plan, bound, CUDA)
    steps = [x for s in stages_in(plan.body) for x in s.steps if isinstance(x.method, Attend)]
    assert steps
    assert all(x.bounds for x in steps)
    assert all(x.method.instruction == instruction for x in steps if isinstance(x.method, Attend))
    source = emit(bound, plan, CUDA, OPTIONS)
    for position in (0, 100, 319):
        given = dirty(values(program, position), 320, 64)
        (found,) = emulate(bound, plan, source, given, late=False, seed=position)
        check(program, given, found, 1e-2)
