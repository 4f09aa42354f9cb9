"""Reductions across the rows of a matrix whose columns are the outputs, on the emulator against the evaluator."""

import numpy as np
import pytest

from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Binary, Cast, Load, Tensor, Unary, cast, idx
from monotile.ir.program import Program, Weight, compute
from monotile.kernels.reduction.method import Reduce
from monotile.pipeline import schedule
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan, Stage
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from tests.codegen.emulate import COMPILER, emulate

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
TARGET = cuda_target("sm_90a")
LIMIT = {DType.F16: 2e-3, DType.BF16: 1.6e-2, DType.F32: 2e-5, DType.F64: 1e-12}


def product(rows: int, columns: int, dtype: DType) -> Program:
    """gelu-like of x @ w + b: a vector times a matrix as `x @ w` has it, and what follows."""
    x, w = Tensor("x", (1, rows), dtype), Tensor("w", (rows, columns), dtype)
    b, sums = Tensor("b", (columns,), dtype), Tensor("sums", (1, columns), _wide(dtype))
    y = Tensor("y", (1, columns), dtype)
    wide = _wide(dtype)
    body = (
        compute(
            sums,
            lambda i, j, k: Binary(
                "mul", cast(Load(x, (idx(0), k)), wide), cast(Load(w, (k, j)), wide)
            ),
            reduce=(rows,),
            combiner="sum",
        ),
        compute(
            y,
            lambda i, j: Cast(
                Unary("tanh", Binary("add", Load(sums, (i, j)), cast(Load(b, (j,)), wide))), dtype
            ),
        ),
    )
    return Program((x,), (Weight(w, ("w",)), Weight(b, ("b",))), body, (y,))


def reduction(shape: tuple[int, int, int], combiner: str, dtype: DType) -> Program:
    """Over the first two axes of three."""
    x, y = Tensor("x", shape, dtype), Tensor("y", shape[2:], dtype)
    step = compute(y, lambda j, a, b: Load(x, (a, b, j)), reduce=shape[:2], combiner=combiner)
    return Program((x,), (), (step,), (y,))


def _wide(dtype: DType) -> DType:
    return DType.F32 if dtype.itemsize == 2 else dtype


def run(program: Program, workers: int, seed: int) -> Plan:
    options = Options(workers=workers)
    plan = schedule(program, TARGET, options)
    verify(plan, program, TARGET)
    random, values = np.random.default_rng(seed), dict[str, np.ndarray]()
    for t in (*program.inputs, *(w.tensor for w in program.weights)):
        scale = t.shape[0] ** -0.5 if t.name == "w" else 1.0
        values[t.name] = (scale * random.standard_normal(t.shape)).astype(t.dtype.numpy)
    source = emit(program, plan, TARGET, options)
    for late in (False, True):
        (got,) = emulate(program, plan, source, values, late=late, seed=seed)
        (want,) = (a.astype(np.float64) for a in evaluate(program, values))
        limit = LIMIT[program.outputs[0].dtype]
        atol = limit * max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=limit, atol=atol)
    return plan


def columns(plan: Plan) -> list[Reduce]:
    steps = [step for s in plan.body if isinstance(s, Stage) for step in s.steps]
    found = [s.method for s in steps if isinstance(s.method, Reduce)]
    return [r for r in found if r.outputs > 1 and r.lanes > 1]


@pytest.mark.parametrize(
    ("rows", "wide", "dtype", "workers"),
    [
        (256, 192, DType.F16, 132),
        (768, 264, DType.F16, 3),
        (300, 72, DType.BF16, 4),
        (1000, 1048, DType.F16, 5),
        (130, 24, DType.F32, 2),
        (700, 500, DType.F32, 7),
        (150, 18, DType.F64, 2),
        (400, 12, DType.F16, 1),
    ],
)
def test_a_vector_times_a_matrix(rows: int, wide: int, dtype: DType, workers: int) -> None:
    plan = run(product(rows, wide, dtype), workers, seed=rows)
    assert len(columns(plan)) == 1


@pytest.mark.parametrize("combiner", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("shape", [(2, 97, 40), (15, 20, 200), (1, 4000, 8)])
def test_reductions(shape: tuple[int, int, int], combiner: str) -> None:
    plan = run(reduction(shape, combiner, DType.F32), 3, seed=1)
    assert len(columns(plan)) == 1


def test_what_has_odd_rows_is_left_alone() -> None:
    assert not columns(run(product(300, 33, DType.F16), 3, seed=2))
