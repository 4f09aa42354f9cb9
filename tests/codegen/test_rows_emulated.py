"""Rows in registers on the emulator against PyTorch in float64: lengths, numbers of rows, and what is stored of a row."""

import math
import re
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from monotile.choice.spec import Value
from monotile.config import Options
from monotile.errors import VerificationError
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.types import to_numpy
from monotile.ir.signature import TensorLeaf
from monotile.kernels.rowwise.method import HoldRows
from monotile.pipeline import schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan, Stage
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from monotile.targets.target import Target
from tests.codegen.emulate import COMPILER, emulate
from tests.codegen.variants import Wherever
from tests.conftest import wide

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
OPTIONS = Options(workers=3)
TARGET = cuda_target("sm_90a")
Call = Callable[..., Tensor | tuple[Tensor, ...]]


class Model(torch.nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, *args: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.call(*args)


def held(plan: Plan) -> list[tuple[HoldRows, int]]:
    """Every step with rows in registers: how, and in how many rounds."""
    stages = [node for node in plan.body if isinstance(node, Stage)]
    return [
        (s.method, -(-s.dims[0].tile // (plan.launch.threads // s.method.lanes)))
        for g in stages
        for s in g.steps
        if isinstance(s.method, HoldRows)
    ]


def in_registers(lanes: int) -> Wherever:
    """Rows in registers wherever they may be, with so many lanes, or about as many where registers do not suffice."""

    def far(value: Value) -> float:
        first = value["steps"][0]["method"]
        return abs(first["lanes"] - lanes) if first["type"] == "hold_rows" else math.inf

    return Wherever(far)


def check(
    lanes: int,
    call: Call,
    *args: Tensor,
    seed: int = 0,
    changed: int = 0,
    target: Target = TARGET,
    within: float | None = None,
) -> list[tuple[HoldRows, int]]:
    """Runs `call` as one kernel with rows in registers, of about so many lanes; gives how.

    changed: how many arguments, of the last, it updates in place. within: how far off it may be, if not what the type allows.
    """
    captured = capture(Model(call).eval(), args)
    program, constants = transform(captured.program, captured.constants, OPTIONS, lambda *_: None)
    plan = schedule(program, target, OPTIONS, chooser=in_registers(lanes))
    verify(plan, program, target)
    found = held(plan)
    assert found
    values = dict(constants)
    leaves = [x for x in captured.signature.inputs if isinstance(x, TensorLeaf)]
    for x, leaf in zip(args, leaves, strict=True):
        values[leaf.tensor.name] = to_numpy(x)
    source = emit(program, plan, target, OPTIONS)
    results = emulate(program, plan, source, values, late=seed % 2 == 0, seed=seed)
    wide = [x.double() if x.is_floating_point() else x for x in args]
    right = call(*wide)
    every = (*(right if isinstance(right, tuple) else (right,)), *wide[len(wide) - changed :])
    limits = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
    limit = within or limits[args[0].dtype]
    for got, want in zip(results, every, strict=True):
        np.testing.assert_allclose(got.astype(np.float64), want.numpy(), rtol=limit, atol=limit)
    return found


@pytest.fixture(params=[256, 64, 8])
def lanes(request: pytest.FixtureRequest) -> int:
    """How many lanes a row has, where its registers suffice."""
    wanted: int = request.param
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
        wide(5, 768, torch.float32),
        (20, 520, torch.bfloat16),
        wide(40, 64, torch.float16),
        (100, 33, torch.float32),
        wide(48, 48, torch.float32),
        (7, 2048, torch.float16),
    ],
)
def test_lengths(rows: int, length: int, dtype: torch.dtype, lanes: int) -> None:
    x = (torch.randn(1, rows, length) * 3 + 1).to(dtype)
    g, b = torch.randn(length).to(dtype), torch.randn(length).to(dtype)
    check(lanes, layer_norm, x, g, b, seed=rows)
    check(lanes, rms_norm, x, g, seed=rows + 1)
    check(lanes, lambda x: x.softmax(-1), x)


@pytest.mark.parametrize(
    ("length", "dtype"),
    [(768, torch.float16), (768, torch.float32), (1280, torch.bfloat16), (2560, torch.float16), (32, torch.float32)],
)  # fmt: skip
def test_sum_and_squares_in_one_pass(length: int, dtype: torch.dtype, lanes: int) -> None:
    """Also where some warps have a turn less than others, or none."""
    x, g, b = torch.randn(4, length), torch.randn(length), torch.randn(length)
    ((method, _),) = check(lanes, layer_norm, (3 * x + 1).to(dtype), g.to(dtype), b.to(dtype))
    assert len(method.moments) == 1


def test_one_pass_subtracts_no_large_squares(lanes: int) -> None:
    """Of mean 300 and variance 1 the difference of mean square and squared mean would be wrong by 0.005."""
    x = torch.randn(4, 512) + 300
    ((method, _),) = check(lanes, lambda x: F.layer_norm(x, (512,)), x, within=5e-5)
    assert len(method.moments) == 1


def test_two_passes_where_lanes_differ(lanes: int) -> None:
    x, g = torch.randn(3, 33), torch.randn(33)
    ((method, _),) = check(lanes, layer_norm, x, g, g)
    assert method.moments == ()
    ((method, _),) = check(lanes, rms_norm, torch.randn(3, 64), torch.randn(64))
    assert method.moments == ()


@pytest.mark.parametrize("off", [0.0, 1.0])
def test_squares_round_something_else_take_their_own_pass(off: float, lanes: int) -> None:
    def call(x: Tensor) -> Tensor:
        mean = x.sum(-1, keepdim=True) / (64 + off)
        return (x - mean) * torch.rsqrt(((x - mean) * (x - mean)).sum(-1, keepdim=True))

    ((method, _),) = check(lanes, call, torch.randn(3, 64) + 1)
    assert len(method.moments) == (off == 0)


def test_a_plan_with_uneven_lanes_in_one_pass_is_refused(lanes: int) -> None:
    x, g = torch.randn(3, 33), torch.randn(33)
    captured = capture(Model(layer_norm).eval(), (x, g, g))
    program, _ = transform(captured.program, captured.constants, OPTIONS, lambda *_: None)
    plan = schedule(program, TARGET, OPTIONS, chooser=in_registers(lanes))
    (stage,) = (n for n in plan.body if isinstance(n, Stage))
    (step,) = stage.steps
    squares = tuple((n, step.computes[0]) for n in step.computes if n.endswith("squares"))
    assert squares
    assert isinstance(step.method, HoldRows)
    method = msgspec.structs.replace(step.method, moments=squares)
    steps = (msgspec.structs.replace(step, method=method),)
    broken = msgspec.structs.replace(plan, body=(msgspec.structs.replace(stage, steps=steps),))
    with pytest.raises(VerificationError, match="in one pass"):
        verify(broken, program, TARGET)


def test_several_results_of_a_row(lanes: int) -> None:
    x, y, g = torch.randn(9, 96), torch.randn(9, 96), torch.randn(96)
    check(lanes, residual, x.half(), y.half(), g.half())
    check(lanes, lambda x: (x - x.mean(-1, keepdim=True), x.mean(-1)), x)
    check(lanes, lambda x: (*torch.var_mean(x, -1), F.layer_norm(x, (96,))), x)


def test_rows_of_several_dimensions(lanes: int) -> None:
    x = torch.randn(2, 3, 8, 12)
    check(lanes, lambda x: F.layer_norm(x, (8, 12)), x)
    check(lanes, lambda x: F.log_softmax(x, -1), x)


def test_many_rows_take_rounds(lanes: int) -> None:
    found = check(lanes, lambda x: x.softmax(-1), torch.randn(3 * 40 + 5, 16))
    assert all(method.lanes == lanes and rounds > 1 for method, rounds in found)


def test_rounds_ask_for_the_next_rows(lanes: int) -> None:
    """A worker has 34 rows, the last one 32: with 4 groups or 32, some have none in the last round."""
    x, y, g = torch.randn(100, 96), torch.randn(100, 96), torch.randn(96)
    for arguments in ((x, y, g), (x.half(), y.half(), g.half())):
        ((_, rounds),) = check(lanes, residual, *arguments)
        assert rounds > 1
    check(lanes, lambda x: (x - x.mean(-1, keepdim=True), x.mean(-1)), x, seed=1)


def test_rounds_of_what_others_made(lanes: int) -> None:
    """Rows, and what all rows read alike, are there after the hand-off; positions are weights that rows differ in."""

    def call(x: Tensor, w: Tensor, p: Tensor, c: Tensor, v: Tensor, b: Tensor) -> Tensor:
        h = x @ w
        return rms_norm((h + h.flip(0)).view(2, 50, 40), c @ v) * p + b

    target = msgspec.structs.replace(TARGET, shared_bytes=16000)  # not enough for all in one
    x, w, p = torch.randn(100, 16), torch.randn(16, 40), torch.randn(50, 40) / 4
    c, v, b = torch.randn(16), torch.randn(16, 40) / 16, torch.randn(40) / 4
    ((_, rounds),) = check(lanes, call, x, w, p, c, v, b, target=target)
    assert rounds > 1
    check(lanes, call, *(t.half() for t in (x, w, p, c, v, b)), target=target, seed=1)


def test_rounds_look_rows_up(lanes: int) -> None:
    def call(table: Tensor, p: Tensor, g: Tensor, i: Tensor) -> Tensor:
        return rms_norm(table[i] + p, g)

    table, p, g = torch.randn(30, 64), torch.randn(50, 64), torch.randn(64)
    i = torch.randint(0, 30, (2, 50))
    ((_, rounds),) = check(lanes, call, table.half(), p.half(), g.half(), i)
    assert rounds > 1


def test_rounds_write_over_what_they_read(lanes: int) -> None:
    """A group without a row in the last round may find what another has made of it."""

    def call(x: Tensor, total: Tensor) -> Tensor:
        y = x.softmax(-1)
        total.mul_(0.5).add_(y)
        return y

    x, total = torch.randn(100, 48), torch.randn(100, 48)
    ((_, rounds),) = check(lanes, call, x, total, changed=1)
    assert rounds > 1
    check(lanes, call, x.half(), total.half(), changed=1, seed=1)


def test_what_has_no_common_rows_lies_on_chip(lanes: int) -> None:
    captured = capture(Model(lambda x: (x - x.mean(0)).softmax(-1)).eval(), (torch.randn(8, 40),))
    program, _ = transform(captured.program, captured.constants, OPTIONS, lambda *_: None)
    plan = schedule(program, TARGET, OPTIONS, chooser=in_registers(lanes))
    verify(plan, program, TARGET)


def test_what_is_asked_for_before_a_hand_off_waits_in_whole_words(lanes: int) -> None:
    """Taken apart where it is asked for, it would be waited for there, before the hand-off is looked at."""

    def call(x: Tensor, w: Tensor, b: Tensor, g: Tensor) -> Tensor:
        return layer_norm(F.linear(x, w, b), g, b)

    x, w, b = torch.randn(128, 256).half(), torch.randn(384, 256).half(), torch.randn(384).half()
    captured = capture(Model(call).eval(), (x, w, b, b))
    program, _ = transform(captured.program, captured.constants, OPTIONS, lambda *_: None)
    text = emit(
        program, schedule(program, TARGET, OPTIONS, chooser=in_registers(lanes)), TARGET, OPTIONS
    ).text
    assert "mt::Words<decltype(fetch_columns(0))> prefetched_columns{};" in text
    assert re.search(r"mt::Words<decltype\(fetch_(rows|all)_steady\(0\)\)> early_\1_steady", text)
