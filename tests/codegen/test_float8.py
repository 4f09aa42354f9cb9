"""8-bit floats in generated code, bit by bit as PyTorch converts them."""

import numpy as np
import pytest

from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.program import Program
from monotile.pipeline import schedule
from monotile.targets.cuda.build import build
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from tests.codegen import cpu_programs, cuda_programs
from tests.codegen.cpu_run import Array, Compiled, random_values
from tests.codegen.emulate import COMPILER, emulate
from tests.ir.float8 import TYPES, casts, same

NEEDS_EMULATOR = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
OPTIONS = Options(workers=3)


def emulated(program: Program, values: dict[str, Array]) -> tuple[Array, ...]:
    target = cuda_target("sm_90a")
    plan = schedule(program, target, OPTIONS)
    return emulate(program, plan, emit(program, plan, target, OPTIONS), values)


@pytest.mark.parametrize("dtype", TYPES)
def test_casts_on_the_cpu(dtype: DType) -> None:
    program, given, want = casts(dtype)
    for found, right in zip(Compiled(program)(given), want, strict=True):
        same(found, right)


@NEEDS_EMULATOR
@pytest.mark.parametrize("dtype", TYPES)
def test_casts_emulated(dtype: DType) -> None:
    program, given, want = casts(dtype)
    for found, right in zip(emulated(program, given), want, strict=True):
        same(found, right)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_casts_build_for(architecture: str) -> None:
    """sm_90a decodes by its own instruction."""
    target = cuda_target(architecture)
    for dtype in TYPES:
        program, *_ = casts(dtype)
        source = emit(program, schedule(program, target, OPTIONS), target, OPTIONS)
        text = build(source.text, target, Options(cache=False)).ptx
        own = dtype is DType.F8E4M3 and architecture != "sm_80"
        assert ("cvt.rn.f16x2.e4m3x2" in text) == own


def near(program: Program, got: tuple[Array, ...], values: dict[str, Array]) -> None:
    """A sum in another order may round to a neighbour."""
    unit = {DType.F8E4M3: 2.0**-3, DType.F8E5M2: 2.0**-2}
    for t, a, b in zip(program.outputs, got, evaluate(program, values), strict=True):
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        np.testing.assert_allclose(wide_a, wide_b, rtol=unit[t.dtype], atol=2.0**-4)
        assert np.mean(wide_a != wide_b) < 0.03


@pytest.mark.parametrize("dtype", TYPES[:2])
@pytest.mark.parametrize(("left", "right"), [("k", "k"), ("k", "mn"), ("mn", "none")])
def test_products_on_the_cpu(dtype: DType, left: str, right: str) -> None:
    program = cpu_programs.linear(33, 70, 45, dtype, left=left, right=right)
    values = random_values(program)
    near(program, Compiled(program)(values), values)


@NEEDS_EMULATOR
@pytest.mark.parametrize("dtype", TYPES[:2])
@pytest.mark.parametrize("rows", [1, 5, 33])
def test_products_emulated(dtype: DType, rows: int) -> None:
    program = cuda_programs.linear(rows, 70, 48, dtype)
    values = random_values(program)
    near(program, emulated(program, values), values)
