"""Heads that share keys and values, in tasks of one head and of several: on the emulator against PyTorch in float64."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from monotile.choice.chooser import Prefer
from monotile.choice.spec import Value
from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.types import to_numpy
from monotile.ir.signature import TensorLeaf
from monotile.kernels.attention.method import Attend
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Step
from monotile.plan.walk import stages_in
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from tests.codegen.emulate import COMPILER, emulate
from tests.codegen.test_attention_emulated import Call, Model, normal
from tests.conftest import wide

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
OPTIONS = Options(workers=3)
TARGET = cuda_target("sm_90a")


class Way(NamedTuple):
    """How attention is to be cut. together: a task has rows of several heads."""

    together: bool
    instruction: str

    def holds(self, value: Value) -> bool:
        step = value["steps"][0]
        method = step["method"]
        if method["type"] != "attend" or method["instruction"] != self.instruction:
            return False
        return (len(step["dims"]) < 4) == self.together


def attends(call: Call, way: Way | None, *args: torch.Tensor, seed: int = 0) -> tuple[Step, ...]:
    """Runs `call` as one kernel and compares; gives the steps that attend. way: None for what the model takes."""
    captured = capture(Model(call).eval(), args)
    program, constants = transform(captured.program, captured.constants, OPTIONS)
    chooser = Prefer("split keys", lambda way: way["parts"] == 1)
    if way is not None:
        chooser = Prefer("cut", way.holds, chooser)
    program, context = for_target(program, TARGET, chooser=chooser)
    plan = schedule(program, TARGET, OPTIONS, context, chooser)
    verify(plan, program, TARGET)
    leaves = [x for x in captured.signature.inputs if isinstance(x, TensorLeaf)]
    values = dict(constants)
    values |= {leaf.tensor.name: to_numpy(x) for x, leaf in zip(args, leaves, strict=True)}
    source = emit(program, plan, TARGET, OPTIONS)
    (found,) = emulate(program, plan, source, values, late=seed % 2 == 0, seed=seed)
    right = call(*(x.double() if x.is_floating_point() else x for x in args)).numpy()
    limit = 1.5e-2 if args[0].dtype is torch.bfloat16 else 2e-3
    np.testing.assert_allclose(found.astype(np.float64), right, rtol=limit, atol=limit)
    steps = (s for stage in stages_in(plan.body) for s in stage.steps)
    return tuple(s for s in steps if isinstance(s.method, Attend))


def qkv(
    batch: int, heads: int, shared: int, rows: int, keys: int, size: int, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    q = normal(batch, heads, rows, size, dtype=dtype)
    return q, *(normal(batch, shared, keys, size, dtype=dtype, seed=k) for k in (1, 2))


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


@pytest.mark.parametrize("together", [False, True], ids=["apart", "together"])
@pytest.mark.parametrize(
    ("heads", "shared", "rows", "size", "instruction", "dtype"),
    [
        (8, 2, 5, 32, "mma", torch.float16),  # 20 rows of a run: blocks of 32
        (4, 2, 24, 32, "mma", torch.bfloat16),  # blocks end within heads
        (6, 2, 40, 64, "wgmma", torch.float16),  # runs of 120 rows in tasks of 60 or 120
        (8, 2, 33, 128, "wgmma", torch.bfloat16),
    ],
)
def test_runs_of_heads(
    heads: int, shared: int, rows: int, size: int, instruction: str, dtype: torch.dtype, together: bool
) -> None:  # fmt: skip
    args = qkv(2, heads, shared, rows, 150, size, dtype)
    (step,) = attends(grouped, Way(together, instruction), *args, seed=rows)
    rows_of = step.dims[step.method.m]  # type: ignore[attr-defined]
    assert len(rows_of.axes) == (2 if together else 1)
    assert not together or heads // shared * rows % rows_of.tile == 0


def test_one_row_of_each_head() -> None:
    """A step of decoding for many sequences: the rows of a task are the heads that share keys."""
    (step,) = attends(grouped, None, *qkv(36, 8, 2, 1, 200, 32, torch.float16))
    assert step.dims[step.method.m].tile == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize("rows", [1, 9])
def test_all_heads_share_keys(rows: int) -> None:
    (step,) = attends(grouped, None, *qkv(2, 6, 1, rows, 90, 32, torch.float16))
    assert step.dims[step.method.m].extent == 6 * rows  # type: ignore[attr-defined]


def cached(window: int | None, cap: float | None) -> Callable[..., torch.Tensor]:
    """Attention of a chunk over a static cache, of which what lies behind the chunk's last token is dead."""

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        where = at + torch.arange(q.shape[2])
        keys, values = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores = (q @ keys.transpose(-1, -2)).to(q.dtype) * q.shape[-1] ** -0.5
        if cap is not None:
            scores = cap * torch.tanh(scores / cap)
        slots = torch.arange(k.shape[2])
        seen = slots <= where[:, None]
        if window is not None:
            seen = seen & (slots > where[:, None] - window)
        scores = torch.where(
            seen, scores.float() if q.dtype != torch.float64 else scores, -torch.inf
        )
        return torch.softmax(scores, -1).to(q.dtype) @ values

    return call


@pytest.mark.parametrize("at", [0, 37, 88])
@pytest.mark.parametrize(
    ("window", "cap"), [(None, None), wide(10, None), wide(None, 5.0), (10, 5.0)]
)
@pytest.mark.parametrize("together", [False, True], ids=["apart", "together"])
def test_chunks_of_a_cache(at: int, window: int | None, cap: float | None, together: bool) -> None:
    dtype = torch.bfloat16 if at == 37 else torch.float16
    args = qkv(1, 8, 2, 8, 96, 32, dtype)
    (step,) = attends(cached(window, cap), Way(together, "mma"), *args, torch.tensor(at), seed=at)
    assert step.bounds
    assert len(step.dims) == (3 if together else 4)


def test_a_bias_of_each_head() -> None:
    """What follows the products knows its row's head."""

    def biased(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, bias, enable_gqa=True)

    args = qkv(2, 8, 2, 6, 90, 32, torch.float16)
    bias = normal(8, 6, 90, seed=7)
    (step,) = attends(biased, Way(True, "mma"), *args, bias)
    assert len(step.dims) == 3


def test_heads_behind_tokens() -> None:
    """The result's heads are not in front of its rows, as they are in a task."""

    def behind(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return grouped(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2).contiguous()

    args = (x.transpose(1, 2).contiguous() for x in qkv(2, 8, 2, 6, 90, 32, torch.float16))
    (step,) = attends(behind, Way(True, "mma"), *args)
    assert len(step.dims) == 3
