"""Weights that make way in the last-level cache for what is read again."""

import msgspec
import numpy as np
import pytest

from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Binary, Expr, Load, Tensor, cast
from monotile.ir.program import Carry, Loop, Program, Weight, compute
from monotile.kernels.matmul.method import Matmul
from monotile.pipeline import schedule
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan, PlanNode, Repeat
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from tests.codegen.cuda_programs import linear
from tests.codegen.emulate import COMPILER, emulate

SMALL = msgspec.structs.replace(cuda_target("sm_90a"), l2_bytes=1 << 12)
LARGE = cuda_target("sm_90a")


def contracts(body: tuple[PlanNode, ...]) -> list[Matmul]:
    out: list[Matmul] = []
    for node in body:
        if isinstance(node, Repeat):
            out += contracts(node.body)
        else:
            out += [s.method for s in node.steps if isinstance(s.method, Matmul)]
    return out


def once(plan: Plan) -> list[tuple[bool, bool]]:
    return [(c.evicts_first("left"), c.evicts_first("right")) for c in contracts(plan.body)]


def layers(width: int, *, own: bool) -> Program:
    """x @ w.T again and again; own: a matrix for each iteration."""
    init = Tensor("x", (64, width), DType.F16)
    param, made, out = (Tensor(n, init.shape, DType.F16) for n in ("before", "made", "y"))
    w = Tensor("w", (3, width, width) if own else (width, width), DType.F16)
    loop = Axis("l", 3)

    def body(i: Expr, j: Expr, k: Expr) -> Expr:
        matrix = Load(w, (loop, j, k) if own else (j, k))
        return Binary("mul", cast(Load(param, (i, k)), DType.F32), cast(matrix, DType.F32))

    step = compute(made, body, reduce=(width,), combiner="sum")
    carry = Carry(init, param, made, out)
    parts = ("w0", "w1", "w2") if own else ("w",)
    weight = Weight(w, parts, 1 if own else 0)
    return Program((init,), (weight,), (Loop(loop, (carry,), (), (step,)),), (out,))


def test_only_what_the_cache_does_not_hold() -> None:
    program = linear(64, 96, 256, DType.F16)
    assert once(schedule(program, LARGE, Options())) == [(False, False)]
    assert once(schedule(program, SMALL, Options())) == [(False, True)]


@pytest.mark.parametrize("own", [True, False])
def test_what_the_next_iteration_reads_again_is_kept(own: bool) -> None:
    plan = schedule(layers(128, own=own), SMALL, Options())
    assert once(plan) == [(False, own)]


def test_what_a_later_wave_reads_again_is_kept() -> None:
    few = Options(workers=2)
    assert once(schedule(linear(2048, 64, 256, DType.F16), SMALL, few)) == [(False, False)]
    assert once(schedule(linear(16, 4096, 256, DType.F16), SMALL, few)) == [(False, True)]


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
def test_it_is_right() -> None:
    program, options = layers(128, own=True), Options()
    plan = schedule(program, SMALL, options)
    verify(plan, program, SMALL)
    source = emit(program, plan, SMALL, options)
    assert ".evict_first = true" in source.text
    random = np.random.default_rng(0)
    values = {n: (random.standard_normal((128, 128)) / 12).astype(np.float16) for n in ("w0", "w1", "w2")}  # fmt: skip
    values["x"] = random.standard_normal((64, 128)).astype(np.float16)
    (got,) = emulate(program, plan, source, values, late=True, seed=0)
    (want,) = evaluate(program, values)
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=4e-3, atol=4e-3)
