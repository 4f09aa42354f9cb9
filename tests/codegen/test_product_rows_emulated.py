"""Products whose rows of sums are finished in their own task, on the emulator against PyTorch in float64."""

import math

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from monotile.choice.chooser import Prefer
from monotile.choice.spec import Value
from monotile.config import Options
from monotile.errors import VerificationError
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.types import to_numpy
from monotile.ir.program import Program
from monotile.ir.signature import TensorLeaf
from monotile.kernels.matmul.method import MatmulRows
from monotile.pipeline import schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan, Step
from monotile.plan.places import Register
from monotile.plan.walk import stages_in
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from tests.codegen.emulate import COMPILER, emulate
from tests.codegen.test_rows_emulated import Call, Model, layer_norm, rms_norm
from tests.codegen.variants import Wherever
from tests.conftest import wide

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
TARGET = cuda_target("sm_90a")
LIMITS = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
WAYS = {  # instruction, teams, whether a task asks for operands of the next, workers
    "scalar": ("fma", 1, False, 3),
    "warps": ("mma", 1, False, 40),
    "warps-following": ("mma", 1, True, 2),
    "groups": ("wgmma", 1, False, 40),
    "groups-following": ("wgmma", 1, True, 2),
    "teams": ("wgmma", 2, False, 2),
}
HALF = [name for name in WAYS if name != "scalar"]


def rows_by(way: str) -> Wherever:
    """Rows of sums finished by the product wherever they may be, by this way where there is one."""
    instruction, teams, following, _ = WAYS[way]

    def far(value: Value) -> float:
        first = value["steps"][0]["method"]
        return 0.0 if first["type"] == "matmul_rows" and len(value["steps"]) == 1 else math.inf

    def holds(value: Value) -> bool:
        m = value["method"]
        ahead = any(x["at"] == "task" for x in m["prefetch"])
        found = (m["instruction"], m["tasks_at_once"], ahead)
        return "lanes" in value and found == (instruction, teams, following)

    return Wherever(far, Prefer("blocks", holds))


def planned(call: Call, args: tuple[Tensor, ...], way: str) -> tuple[Program, Plan, dict[str, np.ndarray]]:  # fmt: skip
    """What `call` becomes that way, and what is given to it."""
    options = Options(workers=WAYS[way][3])
    captured = capture(Model(call).eval(), args)
    program, constants = transform(captured.program, captured.constants, options, lambda *_: None)
    plan = schedule(program, TARGET, options, chooser=rows_by(way))
    verify(plan, program, TARGET)
    values = dict(constants)
    leaves = [x for x in captured.signature.inputs if isinstance(x, TensorLeaf)]
    for x, leaf in zip(args, leaves, strict=True):
        values[leaf.tensor.name] = to_numpy(x)
    return program, plan, values


def finished(plan: Plan) -> list[Step]:
    """The steps that finish rows of a product."""
    steps = (step for stage in stages_in(plan.body) for step in stage.steps)
    return [s for s in steps if isinstance(s.method, MatmulRows)]


def check(way: str, call: Call, *args: Tensor, seed: int = 0) -> Step:
    """Runs `call` as one kernel whose product finishes its rows; gives that step."""
    program, plan, values = planned(call, args, way)
    (step,) = finished(plan)
    instruction, teams, following, workers = WAYS[way]
    m = step.method
    assert isinstance(m, MatmulRows)
    assert (m.instruction, m.teams, m.following > 0) == (instruction, teams, following)
    assert plan.places[step.computes[step.anchor]] == (Register(),)
    source = emit(program, plan, TARGET, Options(workers=workers))
    results = emulate(program, plan, source, values, late=seed % 2 == 0, seed=seed)
    right = call(*(x.double() if x.is_floating_point() else x for x in args))
    limit = LIMITS[args[0].dtype]
    for got, want in zip(results, right if isinstance(right, tuple) else (right,), strict=True):
        np.testing.assert_allclose(got.astype(np.float64), want.numpy(), rtol=limit, atol=limit)
    return step


def scores(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + mask).softmax(-1)


def normalised(x: Tensor, w: Tensor, b: Tensor, r: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    total = F.linear(x, w, b) + r
    return total, layer_norm(total, g, b)


def masked(batch: int, heads: int, rows: int, keys: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    q, k = (torch.randn(batch, heads, n, width).to(dtype) for n in (rows, keys))
    return q, k, torch.where(torch.rand(batch, 1, 1, keys) < 0.3, -1e4, 0.0).to(dtype)


@pytest.mark.parametrize(
    ("way", "dtype"),
    [(way, torch.float16) for way in HALF]
    + [("warps", torch.bfloat16), ("groups", torch.bfloat16)]
    + [wide(way, torch.bfloat16) for way in ("warps-following", "groups-following", "teams")],
    ids=str,
)
def test_scores_with_a_mask(way: str, dtype: torch.dtype) -> None:
    width = 128 if way == "teams" else 64  # teams need several chunks
    step = check(way, scores, *masked(2, 3, 128, 128, width, dtype), seed=len(way))
    assert isinstance(step.method, MatmulRows)
    assert step.method.span == (128,)


@pytest.mark.parametrize("way", WAYS)
def test_a_bias_a_residual_and_a_normalisation(way: str) -> None:
    """Also of rows that are no whole block, and a result that is stored on the way."""
    dtype = torch.float32 if way == "scalar" else torch.float16
    x, w, r = torch.randn(300, 72) / 8, torch.randn(64, 72), torch.randn(300, 64)
    b, g = torch.randn(64), torch.randn(64)
    step = check(way, normalised, *(t.to(dtype) for t in (x, w, b, r, g)), seed=len(way))
    assert isinstance(step.method, MatmulRows)
    assert len(step.method.moments) == 1


@pytest.mark.parametrize("columns", [10, wide(33), 100])
@pytest.mark.parametrize("way", ["scalar", "warps", "groups-following", "teams"])
def test_columns_that_fill_no_block(way: str, columns: int) -> None:
    dtype = torch.float32 if way == "scalar" else torch.float16
    k = 136 if way == "teams" else 48
    x, w, b = torch.randn(300, k), torch.randn(columns, k) / math.sqrt(k), torch.randn(columns)
    check(way, lambda x, w, b: F.linear(x, w, b).log_softmax(-1), *(t.to(dtype) for t in (x, w, b)))


@pytest.mark.parametrize("way", ["scalar", "warps", "groups"])
def test_what_a_row_has_one_of(way: str) -> None:
    dtype = torch.float32 if way == "scalar" else torch.float16

    def call(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        return rms_norm(y, g), y.amax(-1)

    x, w, g = torch.randn(2, 70, 64) / 8, torch.randn(64, 96), torch.randn(96)
    check(way, call, *(t.to(dtype) for t in (x, w, g)))


@pytest.mark.parametrize("way", ["scalar", "warps"])
def test_where_the_largest_is(way: str) -> None:
    """The first one of equals, as there are among small whole numbers."""
    dtype = torch.float32 if way == "scalar" else torch.float16
    x, w = (torch.randint(-2, 3, (n, 24)).to(dtype) for n in (70, 50))
    check(way, lambda x, w: ((x @ w.T).argmax(-1), (x @ w.T).softmax(-1)), x, w)
    check(way, lambda x, w: (x @ w.T).argmin(-1), x, w)


def test_rows_of_several_dimensions() -> None:
    x, w = torch.randn(90, 32), torch.randn(8, 12, 32) / 6
    check("scalar", lambda x, w: F.layer_norm(torch.einsum("rk,abk->rab", x, w), (8, 12)), x, w)


def test_the_scores_of_all_heads_are_one_stage_by_the_model() -> None:
    """Nothing but the result is in memory; with no mask as well, and in single precision."""
    q, k, mask = masked(64, 12, 128, 128, 64, torch.float16)
    for given in ((q, k, mask), (q.float(), k.float(), mask.float())):
        captured = capture(Model(scores).eval(), given)
        program, _ = transform(captured.program, captured.constants, Options(), lambda *_: None)
        plan = schedule(program, TARGET, Options())
        assert plan.launch.workspace_bytes == 0
        (stage,) = stages_in(plan.body)
        assert [type(s.method) for s in stage.steps] == [MatmulRows]


def test_a_product_of_long_rows_is_a_stage_of_its_own() -> None:
    x, w = torch.randn(512, 64).half(), torch.randn(1024, 64).half()
    _, plan, _ = planned(lambda x, w: (x @ w.T).softmax(-1), (x, w), "groups")
    assert not finished(plan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": ("softmax",)}, "order of evaluation"),
        ({"lanes": 64}, "64 lanes"),
        ({"vector": 8}, "vectors"),
        ({"span": (64,)}, "not those"),
        ({"moments": (("softmax_sum", "softmax_max"),)}, "in one pass"),
        ({"block_n": 64, "warps_n": 1}, "several blocks|add up"),
    ],
)
def test_what_the_verifier_refuses(change: dict[str, object], message: str) -> None:
    program, plan, _ = planned(scores, masked(2, 3, 128, 128, 64, torch.float16), "groups")
    (stage,) = stages_in(plan.body)
    (step,) = stage.steps
    method = msgspec.structs.replace(step.method, **change)
    steps = (msgspec.structs.replace(step, method=method),)
    broken = msgspec.structs.replace(plan, body=(msgspec.structs.replace(stage, steps=steps),))
    with pytest.raises(VerificationError, match=message):
        verify(broken, program, TARGET)
