"""Attention of few tokens over a cache, in parts of the keys that are one streamed step each: on the emulator against PyTorch in float64."""

from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np
import pytest
import torch

from monotile.choice.chooser import Prefer
from monotile.choice.spec import Value
from monotile.config import Options
from monotile.errors import VerificationError
from monotile.frontends.torch.capture import Captured, capture
from monotile.frontends.torch.types import to_numpy
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.program import Compute, Program
from monotile.ir.signature import TensorLeaf
from monotile.kernels.attention.method import Attend
from monotile.kernels.draft import Context
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Method, Plan, Stage, Step
from monotile.plan.walk import each_stage, stages_in
from monotile.schedule.split_keys import split_keys
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from monotile.transform.live.bound import bound_live
from tests.codegen.emulate import COMPILER, emulate
from tests.codegen.test_attention_emulated import Model
from tests.codegen.test_shared_keys_emulated import qkv
from tests.transform.live_programs import attention, values

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
OPTIONS = Options(workers=5)
TARGET = cuda_target("sm_90a")
KEYS, PARTS = 256, 4
FULL = KEYS - 1
EDGES = (0, 1, PARTS - 1, PARTS, 16 * PARTS - 1, 16 * PARTS, FULL)  # of parts, and of their chunks


def over_cache(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: torch.Tensor,
    window: int | None = None, cap: float | None = None, low: float = -torch.inf,
) -> torch.Tensor:  # fmt: skip
    """The last token sees keys up to `at`, those before it one less each: the first ones may see none."""
    group, tokens = q.shape[1] // k.shape[1], q.shape[2]
    where = at - tokens + 1 + torch.arange(tokens)
    keys, values = (x.repeat_interleave(group, 1) for x in (k, v))
    wide = torch.float64 if q.dtype is torch.float64 else torch.float32
    scores = q.to(wide) @ keys.to(wide).transpose(-1, -2) * q.shape[-1] ** -0.5
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    slots = torch.arange(k.shape[2])
    seen = slots <= where[:, None]
    if window is not None:
        seen = seen & (slots > where[:, None] - window)
    masked = (
        torch.where(seen, scores, low)
        if low == -torch.inf
        else scores + torch.where(seen, 0.0, low)
    )
    scores = masked.to(wide)
    return torch.softmax(scores, -1).to(q.dtype) @ values


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """As models write it that do not call PyTorch's attention: scores in the dtype of the queries."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = torch.where(torch.arange(k.shape[2]) <= at, scores, -torch.inf)
    wide = torch.float64 if q.dtype is torch.float64 else torch.float32
    return torch.softmax(scores, -1, dtype=wide).to(q.dtype) @ v


class Parts:
    """`call` in parts, compiled once for all positions."""

    def __init__(
        self,
        call: Callable[..., torch.Tensor],
        *args: torch.Tensor,
        cut: Callable[[Value], bool] | None = None,
    ) -> None:
        self.call, self.args = call, args
        self.captured: Captured = capture(Model(call).eval(), (*args, torch.tensor(0)))
        program, self.constants = transform(self.captured.program, self.captured.constants, OPTIONS)
        wanted = {"parts": PARTS, "streamed": True}
        chooser = Prefer("split keys", lambda way: way == wanted)
        if cut is not None:
            chooser = Prefer("cut", cut, chooser)
        program, context = for_target(program, TARGET, chooser=chooser)
        self.program: Program = program
        self.plan: Plan = schedule(program, TARGET, OPTIONS, context, chooser)
        verify(self.plan, program, TARGET)
        self.source = emit(program, self.plan, TARGET, OPTIONS)
        assert self.step

    @property
    def step(self) -> Step:
        every = (s for stage in stages_in(self.plan.body) for s in stage.steps)
        (found,) = (s for s in every if isinstance(s.method, Attend) and s.method.part)
        return found

    def with_method(self, method: Method) -> Plan:
        """The Plan with another method of the step."""
        step = self.step

        def changed(stage: Stage) -> Stage:
            steps = (
                msgspec.structs.replace(s, method=method) if s == step else s for s in stage.steps
            )
            return msgspec.structs.replace(stage, steps=tuple(steps))

        return msgspec.structs.replace(self.plan, body=each_stage(self.plan.body, changed))

    def check(self, at: int) -> None:
        args = (*self.args, torch.tensor(at))
        leaves = [x for x in self.captured.signature.inputs if isinstance(x, TensorLeaf)]
        given = {leaf.tensor.name: to_numpy(x) for x, leaf in zip(args, leaves, strict=True)}
        (found,) = emulate(
            self.program, self.plan, self.source, {**self.constants, **given}, late=at % 2 == 0, seed=at
        )  # fmt: skip
        right = self.call(*(x.double() if x.is_floating_point() else x for x in args)).numpy()
        limit = 1.5e-2 if self.args[0].dtype is torch.bfloat16 else 2e-3
        np.testing.assert_allclose(found.astype(np.float64), right, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("tokens", [1, 4])
def test_positions(tokens: int, dtype: torch.dtype) -> None:
    parts = Parts(over_cache, *qkv(1, 8, 2, tokens, KEYS, 32, dtype))
    assert parts.step.bounds
    assert parts.step.dims[parts.step.method.m].tile == 4 * tokens  # type: ignore[attr-defined]
    for at in EDGES:
        if at >= tokens - 1:
            parts.check(at)


@pytest.mark.parametrize("call", [over_cache, by_hand])
def test_a_query_of_each_head(call: Callable[..., torch.Tensor]) -> None:
    """Heads with keys of their own, and one token: a part has a single row."""
    parts = Parts(call, *qkv(1, 4, 4, 1, KEYS, 32, torch.float16))
    assert parts.step.dims[parts.step.method.m].tile == 1  # type: ignore[attr-defined]
    for at in (0, PARTS, 131, FULL):
        parts.check(at)


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize(("window", "cap"), [(10, None), (None, 5.0), (70, 5.0)])
def test_windows_and_caps(window: int | None, cap: float | None, tokens: int) -> None:
    """A window of 10 keys leaves parts without a live one in every chunk but one."""
    call = partial(over_cache, window=window, cap=cap)
    parts = Parts(call, *qkv(1, 8, 2, tokens, KEYS, 32, torch.float16))
    for at in (tokens - 1, PARTS * 16, 131, FULL):
        parts.check(at)


def test_masks_by_the_lowest_number() -> None:
    """Parts in which no key is seen have powers relative to the lowest number."""
    call = partial(over_cache, window=10, low=torch.finfo(torch.float32).min)
    parts = Parts(call, *qkv(1, 8, 2, 1, KEYS, 32, torch.float16))
    for at in (0, 1, PARTS, 131, FULL):
        parts.check(at)


@pytest.mark.parametrize("form", ["plain", "window", "raw", "padded"])
def test_what_a_part_hands_on(form: str) -> None:
    """The largest score and the total of each part are those of the Program, also where a part has no live key."""
    program = attention(form, rows=4, keys=128, size=32, dtype=DType.F16)
    chooser = Prefer("split keys", lambda way: way == {"parts": PARTS, "streamed": True})
    found = split_keys(program, TARGET, Context.of(program, TARGET, chooser))
    made = {s.out.name: s.out for s in found.body if isinstance(s, Compute)}
    outputs = (*found.outputs, made["top_parts"], made["total_parts"], made["result_parts"])
    shown = bound_live(msgspec.structs.replace(found, outputs=outputs))
    plan = schedule(shown, TARGET, OPTIONS)
    verify(plan, shown, TARGET)
    (step,) = (
        s for stage in stages_in(plan.body) for s in stage.steps if "result_parts" in s.computes
    )
    assert isinstance(step.method, Attend)
    assert step.method.part
    source = emit(shown, plan, TARGET, OPTIONS)
    for position in (0, 1, PARTS, 60, 124):
        given = values(program, position)
        with np.errstate(all="ignore"):
            (wanted,), parts = evaluate(program, given), evaluate(shown, given)
        result, *others = emulate(shown, plan, source, given, late=False, seed=position)
        np.testing.assert_allclose(result, wanted, rtol=4e-3, atol=4e-3)
        for x, right in zip(others, parts[1:], strict=True):
            np.testing.assert_allclose(x, right, rtol=4e-3, atol=4e-3)


def test_a_method_that_denies_its_part_is_refused() -> None:
    parts = Parts(over_cache, *qkv(1, 8, 2, 1, KEYS, 32, torch.float16))
    whole = msgspec.structs.replace(parts.step.method, part=False)  # type: ignore[type-var]
    with pytest.raises(
        VerificationError, match="another softmax-weighted sum than its method says"
    ):
        verify(parts.with_method(whole), parts.program, TARGET)


@pytest.mark.parametrize(
    ("tokens", "size", "rows", "chunk", "depth"),
    [
        (1, 32, 4, 16, 1),  # several chunks a warp, one after the other
        (1, 64, 4, 16, 2),  # one in use, one under way
        (3, 64, 12, 32, 1),  # rows that end within a tile
        (8, 64, 32, 16, 2),  # two tiles of rows
        (1, 128, 4, 16, 1),  # columns in two groups
        (1, 96, 4, 16, 1),  # columns in runs of 4
    ],
)
def test_direct_operands(tokens: int, size: int, rows: int, chunk: int, depth: int) -> None:
    """Warps read keys and values into their registers, a warp several chunks of them."""

    def holds(value: Value) -> bool:
        method = value["steps"][0]["method"]
        return (method.get("block_m"), method.get("chunk"), method.get("depth")) == (
            rows,
            chunk,
            depth,
        )

    parts = Parts(over_cache, *qkv(1, 8, 2, tokens, 4 * KEYS + 64, size, torch.float16), cut=holds)
    method = parts.step.method
    assert isinstance(method, Attend)
    assert method.direct
    assert holds({"steps": [{"method": msgspec.structs.asdict(method)}]})
    for at in (tokens - 1, 8 * chunk * PARTS, 4 * KEYS + 63):
        parts.check(at)


def test_two_heads_of_a_token() -> None:
    """The fewest rows that a part is streamed for."""
    parts = Parts(over_cache, *qkv(1, 4, 2, 1, KEYS, 32, torch.bfloat16))
    assert parts.step.dims[parts.step.method.m].tile == 2  # type: ignore[attr-defined]
    for at in (0, 131, FULL):
        parts.check(at)


def test_operands_that_lie_apart_have_rings() -> None:
    """Features and columns that no runs of lanes divide."""
    parts = Parts(over_cache, *qkv(1, 8, 2, 1, KEYS, 48, torch.float16))
    assert not parts.step.method.direct  # type: ignore[attr-defined]
    for at in (0, 131, FULL):
        parts.check(at)


def test_direct_operands_of_other_sizes_are_refused() -> None:
    parts = Parts(over_cache, *qkv(1, 8, 2, 1, KEYS, 48, torch.float16))
    method = parts.step.method
    assert isinstance(method, Attend)
    query, key, value = (
        msgspec.structs.replace(x, copy="direct") for x in (method.query, method.key, method.value)
    )
    changed = msgspec.structs.replace(method, query=query, key=key, value=value)
    with pytest.raises(VerificationError, match="cannot be read directly"):
        verify(parts.with_method(changed), parts.program, TARGET)
