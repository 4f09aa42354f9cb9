"""Contractions whose results have rows of odd length, which leave on-chip memory row by row, on the emulator."""

import pytest
import torch

from monotile.choice.chooser import Prefer
from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Binary, Load, Tensor, Unary, cast, const
from monotile.ir.program import Carry, Loop, Program, Stack, Weight, compute
from monotile.kernels.matmul.method import Matmul
from monotile.pipeline import schedule
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from monotile.targets.target import Target
from tests.codegen.cuda_programs import linear, times
from tests.codegen.emulate import COMPILER, emulate
from tests.codegen.test_convolutions_emulated import check as compare
from tests.codegen.test_cuda_emulated import check, inputs
from tests.schedule.programs import ready, stages

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
H, B, F, D = DType.F16, DType.BF16, DType.F32, DType.F64
H100, A100 = cuda_target("sm_90a"), cuda_target("sm_80")
OPTIONS = Options(workers=3)


def product(
    batch: int, rows: int, n: int, k: int, dtype: DType, out: DType, several: bool
) -> Program:
    """x W^T with batches in front, through an activation, and its sign: results of three kinds."""
    x, w = Tensor("x", (batch, rows, k), dtype), Tensor("w", (n, k), dtype)
    y = Tensor("y", (batch, rows, n), out)
    z, s = Tensor("z", (batch, rows, n), out), Tensor("s", (batch, rows, n), DType.BOOL)
    wide = dtype.compute

    body = (
        compute(
            y,
            lambda b, i, j, q: times(Load(x, (b, i, q)), Load(w, (j, q))),
            reduce=(k,),
            combiner="sum",
        ),
        compute(z, lambda b, i, j: Unary("tanh", cast(Load(y, (b, i, j)), wide))),
        compute(s, lambda b, i, j: Binary("gt", cast(Load(y, (b, i, j)), wide), const(0.0, wide))),
    )
    if several:
        return Program((x,), (Weight(w, ("w",)),), body[:2], (y, z))
    return Program((x,), (Weight(w, ("w",)),), body, (z, s))


def stacked(steps: int, rows: int, n: int) -> Program:
    """h[t+1] = tanh(h[t] W^T), all steps one above the other."""
    x, w = Tensor("x", (rows, n), H), Tensor("w", (n, n), H)
    h, s, new = Tensor("h", (rows, n), H), Tensor("s", (rows, n), F), Tensor("new", (rows, n), H)
    last, states = Tensor("last", (rows, n), H), Tensor("states", (steps, rows, n), H)
    body = (
        compute(
            s,
            lambda i, j, q: times(Load(h, (i, q)), Load(w, (j, q))),
            reduce=(n,),
            combiner="sum",
        ),
        compute(new, lambda i, j: Unary("tanh", Load(s, (i, j)))),
    )
    loop = Loop(Axis("step", steps), (Carry(x, h, new, last),), (Stack(new, states),), body)
    return Program((x,), (Weight(w, ("w",)),), (loop,), (states, last))


def run(program: Program, plan: Plan, target: Target, late: tuple[bool, ...] = (True,)) -> str:
    """Checks what the emulator gives, with copies as late as they may be or at once; gives the source."""
    verify(plan, program, target)
    source = emit(program, plan, target, OPTIONS)
    values = inputs(program)
    right = evaluate(program, values)
    for x in late:
        got = emulate(program, plan, source, values, late=x, seed=int(x))
        check(program, got, right)
    return source.text


def instructions(plan: Plan) -> set[str]:
    methods = [s.method for stage in stages(plan) for s in stage.steps]
    return {m.instruction for m in methods if isinstance(m, Matmul)}


LINEAR = {  # rows, n, k, type, target, instruction
    "wgmma": (128, 197, 64, H, H100, "wgmma"),
    "wgmma-ragged": (300, 197, 128, B, H100, "wgmma"),
    "mma": (70, 333, 40, H, H100, "mma"),
    "mma-slices": (40, 77, 512, H, H100, "mma"),
    "mma-few-columns": (37, 49, 40, B, A100, "mma"),
    "mma-one-column-more": (20, 65, 72, H, A100, "mma"),
    "mma-float32": (70, 333, 64, F, H100, "mma"),
    "mma-float32-narrow": (24, 5, 300, F, A100, "mma"),
    "fma": (70, 333, 64, F, H100, "fma"),
    "fma-slices": (33, 31, 300, F, H100, "fma"),
    "fma-narrow": (24, 5, 64, F, H100, "fma"),
}


@pytest.mark.parametrize("name", LINEAR)
def test_activation_and_residual(name: str) -> None:
    """A bias by vectors, a residual of the result's shape by elements."""
    rows, n, k, dtype, target, instruction = LINEAR[name]
    program = ready(linear(rows, n, k, dtype))
    way = Prefer("blocks", lambda value: value["method"]["instruction"] == instruction)
    plan = schedule(program, target, OPTIONS, chooser=way)
    assert instructions(plan) == {instruction}
    text = run(program, plan, target, (True, False))
    assert "mt::unaligned_stores(" in text
    assert "load_constant_each<4>(r_" in text


SEVERAL = {  # batch, rows, n, k, operands, results, whether both of these or one and a sign; how many leave by rows
    "f16-f16": ((3, 20, 35, 64, H, H, True), 2),
    "f16-sign": ((3, 20, 35, 64, H, H, False), 2),
    "f16-f32": ((2, 20, 35, 64, H, F, True), 0),
    "bf16-bf16": ((5, 7, 131, 32, B, B, True), 2),
    "f32-f16": ((2, 33, 67, 40, F, H, True), 2),
    "f32-f32": ((2, 33, 67, 40, F, F, True), 0),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_results(name: str) -> None:
    """Batches in front, and two results: both by rows where they fit the sums' place, else none."""
    arguments, copied = SEVERAL[name]
    program = ready(product(*arguments))
    text = run(program, schedule(program, H100, OPTIONS), H100)
    assert text.count("cells.copy<") == copied


def test_states_of_a_loop() -> None:
    """A carried value has other places in each iteration, and so have its rows."""
    program = ready(stacked(4, 12, 37))
    text = run(program, schedule(program, H100, OPTIONS), H100)
    assert "mt::unaligned_stores(" in text


def test_even_rows() -> None:
    """Vectors of these are aligned where they belong."""
    program = ready(linear(40, 78, 64, H))
    text = run(program, schedule(program, H100, OPTIONS), H100)
    assert "unaligned_stores" not in text


@pytest.mark.parametrize("n", [5, 7, 13, 31])
def test_all_columns_in_one_task(n: int) -> None:
    """The last vector of a row is a part of one, and no other task begins behind it."""
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(64, n))
    plan = compare(model, 30, 64)
    assert instructions(plan) == {"mma"}
