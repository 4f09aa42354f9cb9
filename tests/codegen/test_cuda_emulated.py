"""Generated CUDA against the reference evaluator, on the emulator."""

import numpy as np
import pytest

from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Load, Tensor, add, cast, idx, mul
from monotile.ir.program import Program, Scatter, Weight, compute
from monotile.pipeline import schedule
from monotile.plan.check.structure import verify
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from tests.codegen.cuda_programs import every
from tests.codegen.emulate import COMPILER, emulate
from tests.schedule.programs import ready

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
TOLERANCE = {DType.F16: 2e-3, DType.BF16: 1.6e-2, DType.F32: 2e-5, DType.F64: 1e-12}
PROGRAMS = every()
OPTIONS = Options(workers=3)


def inputs(program: Program, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal values, small weights; indices that every table of the test programs has."""
    random = np.random.default_rng(seed)
    out: dict[str, np.ndarray] = {}
    for t, names in (
        *((t, (t.name,)) for t in program.inputs),
        *((w.tensor, w.parts) for w in program.weights),
    ):
        table = 1 if len(names) > 1 else 0
        for name in names:
            shape = t.shape[table:]
            if t.dtype.is_float:
                scale = 0.3 if name.startswith("w") else 1.0
                out[name] = (scale * random.standard_normal(shape)).astype(t.dtype.numpy)
            else:
                out[name] = random.integers(0, 5, shape).astype(t.dtype.numpy)
    return out


def check(program: Program, got: tuple[np.ndarray, ...], want: tuple[np.ndarray, ...]) -> None:
    for t, a, b in zip(program.outputs, got, want, strict=True):
        if t.dtype.is_float:
            limit = TOLERANCE[t.dtype]
            wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
            scale = max(1.0, float(np.abs(wide_b).max(initial=0)))
            assert np.allclose(wide_a, wide_b, rtol=limit, atol=limit * scale), np.abs(
                wide_a - wide_b
            ).max()
        else:
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    """With copies as late as they may be, and at once."""
    program, target = PROGRAMS[name], cuda_target("sm_90a")
    plan = schedule(program, target, OPTIONS)
    source = emit(program, plan, target, OPTIONS)
    values = inputs(program)
    right = evaluate(program, values)
    for late in (True, False):
        got = emulate(program, plan, source, values, late=late, seed=int(late))
        check(program, got, right)


def test_states() -> None:
    """A cache with a new row, a count, and a tensor that is turned round."""
    cache, ring = Tensor("cache", (5, 40), DType.F16), Tensor("ring", (300,), DType.F32)
    count, row = Tensor("count", (), DType.I64), Tensor("row", (40,), DType.F16)
    (k,) = axes = (Axis("i0", 40),)
    put = Scatter(
        Tensor("put", (5, 40), DType.F16), cache, axes, (Load(count, ()), k), Load(row, axes)
    )
    body = (
        put,
        compute(
            Tensor("total", (5,), DType.F32),
            lambda i, j: cast(Load(put.out, (i, j)), DType.F32),
            reduce=(40,),
            combiner="sum",
        ),
        compute(Tensor("next", (), DType.I64), lambda: add(Load(count, ()), idx(1))),
        compute(
            Tensor("turned", (300,), DType.F32),
            lambda i: Load(ring, (add(idx(299), mul(idx(-1), i)),)),
        ),
    )
    weights = (Weight(cache, ("c",)), Weight(count, ("n",)), Weight(ring, ("r",)))
    made = {s.out.name: s.out for s in body}
    outputs = tuple(made[name] for name in ("total", "put", "next", "turned"))
    program = ready(Program((row,), weights, body, outputs, ("c", "n", "r")))
    target = cuda_target("sm_90a")
    plan = schedule(program, target, OPTIONS)
    verify(plan, program, target)
    values = inputs(program)
    got = emulate(program, plan, emit(program, plan, target, OPTIONS), values)
    check(program, got, evaluate(program, values))


def test_weights_stay_on_chip() -> None:
    """With a worker for each task a recurrence's weights are copied once a layer."""
    program, target = PROGRAMS["recurrence_f32"], cuda_target("sm_90a")
    options = Options(workers=16)
    plan = schedule(program, target, options)
    verify(plan, program, target)
    source = emit(program, plan, target, options)
    assert "keep_w_kept0(p, workspace, " in source.text  # its call
    values = inputs(program)
    check(program, emulate(program, plan, source, values), evaluate(program, values))
