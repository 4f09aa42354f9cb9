"""Attention as one streamed stage: the kernel on the emulator against PyTorch in float64."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from monotile.choice.chooser import MODEL, Chooser, Prefer
from monotile.choice.spec import Value
from monotile.config import Options
from monotile.frontends.torch.capture import capture, export, functional, to_program
from monotile.frontends.torch.tf32 import STRICT, Tf32
from monotile.frontends.torch.types import to_numpy
from monotile.ir.signature import TensorLeaf
from monotile.kernels.attention.method import Attend
from monotile.pipeline import schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan, Stage
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from tests.codegen.emulate import COMPILER, emulate
from tests.codegen.emulate_model import Emulated
from tests.conftest import wide

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
OPTIONS = Options(workers=3)
LIMITS = {torch.bfloat16: 1.5e-2, torch.float16: 2e-3, torch.float32: 3e-6}
Call = Callable[..., torch.Tensor]


class Model(torch.nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.call(*args)


def streamed(plan: Plan) -> list[Attend]:
    stages = [node for node in plan.body if isinstance(node, Stage)]
    return [s.method for stage in stages for s in stage.steps if isinstance(s.method, Attend)]


class Way(NamedTuple):
    """How a stage is to be cut. size: features of a head. more: rows, so that a block of block_m is not too large."""

    instruction: str
    block_m: int
    chunk: int
    size: int
    more: int

    def holds(self, value: Value) -> bool:
        """Of a cut: whether it is this one. By warps any is."""
        first = value["steps"][0]["method"]
        cut = ("instruction", "block_m", "chunk") if self.block_m else ("instruction",)
        return first["type"] == "attend" and [first[x] for x in cut] == [*self[: len(cut)]]


WAYS = (
    Way("mma", 0, 0, 32, 0),
    Way("wgmma", 64, 32, 64, 64),
    Way("wgmma", 64, 64, 64, 64),
    Way("wgmma", 128, 64, 64, 64),
    Way("wgmma", 128, 128, 64, 64),
)


@pytest.fixture(params=WAYS, ids=lambda w: f"{w.instruction}-{w.block_m}x{w.chunk}")
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


def run(
    call: Call, args: Sequence[torch.Tensor], chooser: Chooser, seed: int = 0, tf32: Tf32 = STRICT
) -> tuple[Plan, np.ndarray]:
    """The Plan of `call` as one kernel, and its result."""
    exported = export(Model(call).eval(), args)
    captured = to_program(exported, functional(exported), tf32=tf32)
    target = cuda_target("sm_90a")
    program, constants = transform(captured.program, captured.constants, OPTIONS, lambda *_: None)
    plan = schedule(program, target, OPTIONS, chooser=chooser)
    verify(plan, program, target)
    values = dict(constants)
    leaves = [x for x in captured.signature.inputs if isinstance(x, TensorLeaf)]
    for x, leaf in zip(args, leaves, strict=True):
        values[leaf.tensor.name] = to_numpy(x)
    source = emit(program, plan, target, OPTIONS)
    (found,) = emulate(program, plan, source, values, late=seed % 2 == 0, seed=seed)
    return plan, found


def check(way: Way, call: Call, *args: torch.Tensor, seed: int = 0) -> None:
    """Runs `call` as one kernel, in which attention is a stage that is cut in this way."""
    chooser = Prefer("cut", way.holds, Prefer("match", bool))
    plan, found = run(call, args, chooser, seed)
    assert streamed(plan)
    for a in streamed(plan):
        assert a.instruction == way.instruction
        assert not way.block_m or (a.block_m, a.chunk) == (way.block_m, way.chunk)
    wide = [x.double() if x.is_floating_point() else x for x in args]
    right = call(*wide).numpy()
    limit = LIMITS[args[0].dtype]
    np.testing.assert_array_equal(np.isnan(found.astype(np.float64)), np.isnan(right))
    np.testing.assert_allclose(found.astype(np.float64), right, rtol=limit, atol=limit)


def normal(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def qkv(
    rows: int, keys: int, features: int, columns: int, dtype: torch.dtype = torch.float16
) -> tuple[torch.Tensor, ...]:
    shapes = ((rows, features), (keys, features), (keys, columns))
    return tuple(normal(1, 2, *s, dtype=dtype, seed=k) for k, s in enumerate(shapes))


@pytest.mark.parametrize(
    ("rows", "keys", "features", "columns", "dtype"),
    [
        (16, 128, 64, 64, torch.float16),
        (40, 200, 64, 64, torch.bfloat16),  # rows and keys that no tile divides
        (
            23,
            19,
            24,
            40,
            torch.float16,
        ),  # fewer keys than warps have chunks, features that no step divides
        (70, 300, 128, 128, torch.float16),
        (40, 200, 64, 64, torch.float32),
        (23, 19, 20, 40, torch.float32),
        (16, 300, 128, 96, torch.float32),
    ],
)
@pytest.mark.parametrize("way", WAYS[:1], ids=str, indirect=True)
def test_shapes_of_warps(
    rows: int, keys: int, features: int, columns: int, dtype: torch.dtype, way: Way
) -> None:
    assert way.instruction == "mma"
    check(
        way, F.scaled_dot_product_attention, *qkv(rows, keys, features, columns, dtype), seed=rows
    )


@pytest.mark.parametrize(
    ("rows", "keys", "features", "columns", "dtype"),
    [
        wide(66, 384, 64, 64, torch.float16),
        (100, 200, 64, 64, torch.bfloat16),
        (70, 300, 128, 128, torch.float16),
        (150, 20, 64, 128, torch.float16),  # fewer keys than warpgroups have chunks
        (197, 197, 128, 64, torch.float16),
        (100, 200, 96, 96, torch.float16),  # lines that are not whole
        (70, 130, 72, 72, torch.bfloat16),
        (70, 130, 40, 120, torch.float16),
        (66, 70, 32, 32, torch.float16),
        (66, 70, 112, 80, torch.float16),
        (66, 70, 104, 88, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("way", WAYS[1:], ids=str, indirect=True)
def test_shapes_of_warpgroups(
    rows: int, keys: int, features: int, columns: int, dtype: torch.dtype, way: Way
) -> None:
    assert way.instruction == "wgmma"
    check(
        way, F.scaled_dot_product_attention, *qkv(rows, keys, features, columns, dtype), seed=rows
    )


def test_causal(way: Way) -> None:
    check(
        way,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *qkv(50 + way.more, 50 + way.more, way.size, way.size),
    )


def test_heads_that_share_keys(way: Way) -> None:
    q = normal(2, 6, 20 + way.more, way.size)
    k, v = normal(2, 2, 36, way.size, seed=1), normal(2, 2, 36, way.size, seed=2)
    check(way, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), q, k, v)


@pytest.mark.parametrize("block", [16, 32, 48])
def test_float32(block: int) -> None:
    """Masked, with transposed queries, keys and values, in blocks of several tiles."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.transpose(-1, -2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    args = [x.mT.contiguous() for x in qkv(60, 60, 40, 32, torch.float32)]
    check(Way("mma", block, 16, 40, 0), attention, *args)


def test_float32_as_tf32() -> None:
    """One pass of what may be rounded."""
    args, call = qkv(40, 72, 64, 64, torch.float32), F.scaled_dot_product_attention
    plan, found = run(call, args, Prefer("match", bool), tf32=Tf32(True, True))
    assert [a.passes for a in streamed(plan)] == [1]
    q, k, v = (x.double() for x in args)
    np.testing.assert_allclose(found, call(q, k, v).numpy(), rtol=2e-3, atol=2e-3)


def test_masks(way: Way) -> None:
    """A bias of scores; a mask under which a row sees nothing, and one in which some warps see nothing."""
    rows = 33 + way.more
    q, k, v = qkv(rows, 150, way.size, way.size)
    bias = normal(2, rows, 150, seed=5)
    check(way, lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, b), q, k, v, bias)
    mask = normal(rows, 150, seed=6) > 0
    mask[3] = False
    mask[4, 20:] = False
    mask[5, :140] = False
    check(way, lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), q, k, v, mask)


@pytest.mark.parametrize("low", [torch.finfo(torch.float32).min, -1e9, -3e4])
def test_masked_by_low_numbers(way: Way, low: float) -> None:
    """Of rows that see nothing every key has the same share; some warps have such keys alone."""
    rows = 33 + way.more
    q, k, v = qkv(rows, 150, way.size, way.size)
    mask = normal(rows, 150, seed=6) > 0
    mask[3] = False
    mask[4, 20:] = False
    mask[5, :140] = False

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> Any:
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = q.to(wide) @ k.to(wide).transpose(-1, -2)
        return torch.softmax(torch.where(m, scores, low), -1).to(v.dtype) @ v

    check(way, attention, q / 4, k, v, mask)


def test_biases_that_are_looked_up(way: Way) -> None:
    """By data, in a table that is computed in the call; a scale for each head (Swin v2)."""

    def attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: torch.Tensor,
        table: torch.Tensor, place: torch.Tensor,
    ) -> Any:  # fmt: skip
        bias = torch.sigmoid(table.sin()[place]).permute(2, 0, 1) * 16
        return torch.softmax(q @ k.transpose(-1, -2) * scale + bias, -1) @ v

    rows = 33 + way.more
    place = torch.randint(-30, 30, (rows, 150), generator=torch.Generator().manual_seed(7))
    scale = torch.tensor([[[0.3]], [[0.1]]], dtype=torch.float16)
    args = qkv(rows, 150, way.size, way.size)
    check(way, attention, *args, scale, normal(30, 2, seed=8), place)


def test_written_plainly(way: Way) -> None:
    """Scores and shares in float16, transposed keys, heads in the middle; a row of scores that is -inf gives NaN."""

    def attention(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(1, -1, 2, way.size).transpose(1, 2) for t in (x, y, y * 0.5))
        scores = q @ k.transpose(-1, -2) / way.size**0.5 + mask
        return (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(1, -1, 2 * way.size)

    rows, width = 30 + way.more, 2 * way.size
    mask = torch.zeros(rows, 90, dtype=torch.float16)
    mask[7] = -torch.inf
    mask[8, 1:] = -torch.inf
    check(way, attention, normal(1, rows, width), normal(1, 90, width, seed=1), mask)


def test_scores_that_are_not_numbers(way: Way) -> None:
    q, k, v = qkv(20 + way.more, 140, way.size, way.size)
    q[0, 0, 3], k[0, 1, 100], q[0, 1, 5] = torch.nan, torch.inf, 60000.0
    check(way, F.scaled_dot_product_attention, q, k, v)


def test_shares_that_others_read_are_stored() -> None:
    """Not a stage of its own: the model returns the shares."""
    q, k, v = qkv(32, 48, 32, 32)

    class Both(torch.nn.Module):
        def forward(
            self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
        ) -> tuple[torch.Tensor, ...]:
            shares = torch.softmax(q @ k.transpose(-1, -2), -1)
            return shares, shares @ v

    captured = capture(Both().eval(), (q, k, v))
    program, _ = transform(captured.program, captured.constants, OPTIONS, lambda *_: None)
    assert not streamed(schedule(program, cuda_target("sm_90a"), OPTIONS))


@pytest.mark.parametrize("size", [256, 520])
def test_heads_too_wide_to_stream(size: int) -> None:
    """Registers and rings have no room for them: scores are products like others."""
    x = normal(1, 1, 40, size)
    plan, found = run(lambda q: F.scaled_dot_product_attention(q, q, q), [x], MODEL)
    assert not streamed(plan)
    right = F.scaled_dot_product_attention(x.double(), x.double(), x.double()).numpy()
    np.testing.assert_allclose(found.astype(np.float64), right, rtol=2e-3, atol=2e-3)


def test_values_in_odd_rows() -> None:
    """Which products put together from aligned vectors, and attention takes one by one (fuzz seed 720297)."""
    torch.manual_seed(0)
    values, keys = torch.randn(72, 31).half(), (torch.randn(31, 40) * 0.2).half()
    model = Model(lambda x: F.linear(F.linear(x, keys).softmax(-1), values)).eval()
    x = torch.randn(30, 40).half()
    run = Emulated(model, (x,))
    assert streamed(run.plan)
    (found,) = run(x)
    scores = (x.double() @ keys.double().T).softmax(-1)
    assert (found.double() - scores @ values.double().T).norm() < 2e-3 * found.double().norm()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [30, 21, wide(4), wide(12), wide(36), wide(90), wide(100)])
def test_heads_of_any_width(width: int, dtype: torch.dtype) -> None:
    """SwinIR has heads of 30: tiles of eight columns, the last of which is not whole."""
    torch.manual_seed(0)

    def call(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        q, k, v = x.unflatten(-1, (3, 2, width)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * width**-0.5 + bias
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    x, bias = torch.randn(2, 70, 6 * width).to(dtype), torch.randn(2, 70, 70).to(dtype)
    run = Emulated(Model(call), (x, bias), workers=3)
    assert streamed(run.plan) or dtype is torch.float32
    (found,), want = run(x, bias), call(x.double(), bias.double())
    assert (found.double() - want).norm() < LIMITS[dtype] * want.norm()
