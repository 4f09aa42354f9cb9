"""Rows in registers on the emulator against PyTorch in float64: lengths, numbers of rows, and what is stored of a row."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from monotile.codegen.cuda import emit
from monotile.config import Options
from monotile.frontend.capture import capture
from monotile.frontend.types import to_numpy
from monotile.ir.signature import TensorLeaf
from monotile.schedule import hold_rows
from monotile.schedule.plan import HoldRows, Plan, Stage
from monotile.schedule.schedule import schedule
from monotile.schedule.verify import verify
from monotile.target.target import cuda_target
from monotile.transform.pipeline import transform
from tests.codegen.emulate import COMPILER, emulate

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
OPTIONS = Options(workers=3)
Call = Callable[..., Tensor | tuple[Tensor, ...]]


class Model(torch.nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, *args: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.call(*args)


def methods(plan: Plan) -> list[HoldRows]:
    stages = [node for node in plan.body if isinstance(node, Stage)]
    return [s.method for g in stages for s in g.steps if isinstance(s.method, HoldRows)]


def check(call: Call, *args: Tensor, seed: int = 0) -> list[HoldRows]:
    """Runs `call` as one kernel with rows in registers; gives how."""
    captured = capture(Model(call).eval(), args)
    target = cuda_target("sm_90a")
    program, constants = transform(captured.program, captured.constants, OPTIONS, lambda *_: None)
    plan = schedule(program, target, OPTIONS)
    verify(plan, program, target)
    found = methods(plan)
    assert found
    values = dict(constants)
    leaves = [x for x in captured.signature.inputs if isinstance(x, TensorLeaf)]
    for x, leaf in zip(args, leaves, strict=True):
        values[leaf.tensor.name] = to_numpy(x)
    source = emit(program, plan, target, OPTIONS)
    results = emulate(program, plan, source, values, late=seed % 2 == 0, seed=seed)
    right = call(*(x.double() for x in args))
    limit = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}[args[0].dtype]
    for got, want in zip(results, right if isinstance(right, tuple) else (right,), strict=True):
        np.testing.assert_allclose(got.astype(np.float64), want.numpy(), rtol=limit, atol=limit)
    return found


@pytest.fixture(autouse=True, params=[256, 64, 8])
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many lanes a row has, where its registers suffice: whatever that costs."""
    wanted: int = request.param

    def seconds(_: object, method: HoldRows, *__: object) -> float:
        return 1e-12 * (1 + abs(method.lanes - wanted))

    monkeypatch.setattr(hold_rows, "_seconds", seconds)
    return wanted


def layer_norm(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], g, b)


def rms_norm(x: Tensor, g: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * g


def residual(x: Tensor, y: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y * 2
    return total, rms_norm(total, g)


@pytest.mark.parametrize(
    ("rows", "length", "dtype"),
    [
        (3, 768, torch.float16),
        (5, 768, torch.float32),
        (20, 520, torch.bfloat16),
        (40, 64, torch.float16),
        (100, 33, torch.float32),
        (48, 48, torch.float32),
        (7, 2048, torch.float16),
    ],
)
def test_lengths(rows: int, length: int, dtype: torch.dtype) -> None:
    x = (torch.randn(1, rows, length) * 3 + 1).to(dtype)
    g, b = torch.randn(length).to(dtype), torch.randn(length).to(dtype)
    check(layer_norm, x, g, b, seed=rows)
    check(rms_norm, x, g, seed=rows + 1)
    check(lambda x: x.softmax(-1), x)


def test_several_results_of_a_row() -> None:
    x, y, g = torch.randn(9, 96), torch.randn(9, 96), torch.randn(96)
    check(residual, x.half(), y.half(), g.half())
    check(lambda x: (x - x.mean(-1, keepdim=True), x.mean(-1)), x)
    check(lambda x: (*torch.var_mean(x, -1), F.layer_norm(x, (96,))), x)


def test_rows_of_several_dimensions() -> None:
    x = torch.randn(2, 3, 8, 12)
    check(lambda x: F.layer_norm(x, (8, 12)), x)
    check(lambda x: F.log_softmax(x, -1), x)


def test_many_rows_take_rounds(lanes: int) -> None:
    found = check(lambda x: x.softmax(-1), torch.randn(3 * 40 + 5, 16))
    assert all(method.lanes == lanes for method in found)


def test_what_has_no_common_rows_lies_on_chip() -> None:
    captured = capture(Model(lambda x: (x - x.mean(0)).softmax(-1)).eval(), (torch.randn(8, 40),))
    target = cuda_target("sm_90a")
    program, _ = transform(captured.program, captured.constants, OPTIONS, lambda *_: None)
    plan = schedule(program, target, OPTIONS)
    verify(plan, program, target)
