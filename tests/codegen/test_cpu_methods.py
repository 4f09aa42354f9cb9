"""How a thread of the CPU reduces, and how tiles read the operands of a product: the Plan says so, a Plan may say otherwise, and one that
nobody can follow is refused."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

import monotile
from monotile.config import Options
from monotile.errors import VerificationError
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Axis, Binary, Load, Tensor, cast
from monotile.ir.program import Compute, Program
from monotile.kernels.common.operand import Operand
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.reduction.method import AlongOutputs, AlongTerms, Reduce, Simd
from monotile.kernels.registry import read_plan
from monotile.pipeline import schedule
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Method, Plan, Prefetch
from monotile.plan.printer import show
from monotile.targets.cpu.target import cpu_target
from tests.codegen.cpu_programs import linear
from tests.codegen.cpu_run import TARGET, Compiled, random_values
from tests.codegen.test_cpu import agree
from tests.schedule import programs as p
from tests.schedule.test_verify_threads import with_methods

F16, F32, I64 = DType.F16, DType.F32, DType.I64


def reduction(
    shape: tuple[int, ...], over: tuple[int, ...], dtype: DType = F32, combiner: str = "sum"
) -> Program:
    """An input of a shape, combined over some of its dimensions, the outermost first."""
    x = Tensor("x", shape, dtype)
    axes = [Axis(f"a{d}", n) for d, n in enumerate(shape)]
    kept = [d for d in range(len(shape)) if d not in over]
    out = Tensor("y", tuple(shape[d] for d in kept), I64 if combiner == "argmax" else dtype)
    indices = tuple(axes)
    c = Compute(out, tuple(axes[d] for d in kept), tuple(axes[d] for d in over), combiner, Load(x, indices))  # fmt: skip
    return p.program([x], [c], out)


def plan_of(program: Program) -> Plan:
    """Checked, and the same by way of JSON."""
    plan = schedule(program, TARGET, Options())
    verify(plan, program, TARGET)
    assert read_plan(plan.to_json()) == plan
    return plan


def methods(plan: Plan) -> list[Method]:
    return [step.method for stage in p.stages(plan) for step in stage.steps]


def simd(plan: Plan) -> Simd | None:
    (method,) = (m for m in methods(plan) if isinstance(m, Reduce))
    return method.simd


def dots(k: int, dtype: DType = F32, other: DType = F32, *, rows: int = 5) -> Program:
    """Products of one vector with rows."""
    x, w = Tensor("x", (k,), dtype), Tensor("w", (rows, k), other)
    (i, r), y = (Axis("i", rows), Axis("r", k)), Tensor("y", (rows,), dtype)
    body = Binary("mul", cast(Load(x, (r,)), dtype.compute), cast(Load(w, (i, r)), dtype.compute))
    return p.program([x, w], [Compute(y, (i,), (r,), "sum", body)], y)


ROWS, COLUMNS = reduction((40, 600), (1,)), reduction((600, 40), (0,))
LONG, PICTURE = reduction((4, 100_000), (1,)), reduction((3, 8, 60, 4), (0, 2))
WHOLE = reduction((700,), (0,))
FIRST = reduction((40, 30), (0,), combiner="argmax")
MOST = reduction((600, 40), (0,), combiner="max")


@pytest.mark.parametrize(
    ("program", "found", "words"),
    [
        (ROWS, AlongTerms(), "reduce, vectors along the terms"),
        (COLUMNS, AlongOutputs(20, 64), "reduce, vectors along 20 outputs, partial sums of 64"),
        (MOST, AlongOutputs(20), "reduce, vectors along 20 outputs"),
        (reduction((9, 288), (0,)), AlongOutputs(48), "reduce, vectors along 48 outputs"),
        (LONG, AlongTerms(parts=(16384, 512)), "reduce, vectors along the terms, partial sums of 16384 / 512"),
        (PICTURE, AlongTerms(flat=False), "reduce, vectors along the last axis"),
        (FIRST, AlongTerms(), "reduce, vectors along the terms"),
        (dots(100), AlongTerms(lines=True), "reduce, vectors along the terms, of two lines"),
        (dots(20), AlongTerms(), "reduce, vectors along the terms"),
    ],
    ids=["rows", "columns", "most", "even", "long", "picture", "first", "lines", "short lines"],
)  # fmt: skip
def test_where_vectors_run(program: Program, found: Simd, words: str) -> None:
    plan = plan_of(program)
    assert simd(plan) == found
    assert [m.describe() for m in methods(plan) if isinstance(m, Reduce)] == [words]


@pytest.mark.parametrize(
    ("program", "otherwise"),
    [
        (ROWS, AlongOutputs(7, 100)),
        (ROWS, AlongTerms(parts=(100, 30))),
        (COLUMNS, AlongTerms(parts=(64,))),
        (COLUMNS, AlongOutputs(16)),
        (MOST, AlongTerms()),
        (LONG, AlongTerms(parts=(5000,))),
        (LONG, AlongTerms(flat=False, parts=(5000,))),
        (PICTURE, AlongTerms(flat=True, parts=(50,))),
        (PICTURE, AlongOutputs(4, 60)),
        (dots(3000), AlongTerms(parts=(700,), lines=True)),
        (dots(3000), AlongTerms(parts=(512,))),
    ],
)
def test_vectors_may_run_otherwise(program: Program, otherwise: Simd) -> None:
    """With the same result."""
    plan = with_methods(plan_of(program), Reduce, simd=otherwise)
    verify(plan, program, TARGET)
    values = random_values(program)
    agree(Compiled(program, plan=plan)(values), evaluate(program, values))


@pytest.mark.parametrize(
    ("program", "wrong", "words"),
    [
        (WHOLE, AlongOutputs(4), "no outputs side by side"),
        (FIRST, AlongOutputs(4), "vectors cannot run along outputs"),
        (FIRST, AlongTerms(flat=False), "terms are one loop"),
        (COLUMNS, AlongOutputs(21), "21 outputs side by side of 20"),
        (COLUMNS, AlongOutputs(0), "0 outputs side by side"),
        (COLUMNS, AlongOutputs(4, -1), "partial sums of"),
        (MOST, AlongOutputs(20, 64), "only sums of floats"),
        (reduction((4, 2000), (1,), DType.I32), AlongTerms(parts=(512,)), "only sums of floats"),
        (LONG, AlongTerms(parts=(512, 16384)), "partial sums of"),
        (LONG, AlongTerms(parts=(900, 90, 9)), "partial sums of"),
        (LONG, AlongTerms(parts=(0,)), "partial sums of"),
        (ROWS, AlongTerms(lines=True), "no products of two lines"),
        (dots(20), AlongTerms(lines=True), "no products of two lines"),
    ],
)
def test_vectors_that_cannot_run_so(program: Program, wrong: Simd, words: str) -> None:
    broken = with_methods(plan_of(program), Reduce, simd=wrong)
    with pytest.raises(VerificationError, match=f"cannot be reduced so: .*{words}"):
        verify(broken, program, TARGET)


def test_what_a_column_has_one_of_is_computed_once() -> None:
    """The root of a normalisation, for each channel of a depthwise convolution."""
    torch.manual_seed(0)
    depthwise, norm = nn.Conv2d(48, 48, 3, padding=1, groups=48), nn.BatchNorm2d(48)
    model = nn.Sequential(nn.Conv2d(48, 48, 1), depthwise, norm, nn.ReLU(), nn.Conv2d(48, 20, 1))
    for buffer in (norm.running_mean, norm.running_var):
        assert buffer is not None
        buffer.uniform_(0.5, 2)
    x = torch.randn(2, 48, 9, 10)
    fast = monotile.compile(model.eval(), (x,), target="cpu", options=Options(cache=False))
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    assert "reduce, vectors along" in show(fast.plan)
    assert "of_column_0[48]" in fast.source


@pytest.mark.parametrize("k", [32, 45, 127, 128, 300, 1500])
@pytest.mark.parametrize(
    ("dtype", "other"),
    [(F32, F32), (DType.BF16, DType.BF16), (F16, F16), (F32, DType.BF16), (F32, F16), (DType.F64, DType.F64)],
    ids=str,
)  # fmt: skip
def test_products_of_lines(k: int, dtype: DType, other: DType) -> None:
    program = dots(k, dtype, other)
    found = simd(plan_of(program))
    assert isinstance(found, AlongTerms)
    assert found.lines
    values = random_values(program)
    for target in (TARGET, cpu_target(workers=2, vector_bytes=64)):
        agree(Compiled(program, target=target)(values), evaluate(program, values))


def test_blocks_of_threads_have_no_such_loops() -> None:
    plan = p.plan_of(ROWS, p.H100)
    assert simd(plan) is None
    with pytest.raises(VerificationError, match="loops are for threads by themselves"):
        verify(with_methods(plan, Reduce, simd=AlongTerms()), ROWS, p.H100)


DIRECT, ALONG_N = Operand("k", 1, "direct"), Operand("mn", 1, "direct")
PACKED, TURNED = Operand("none", 1, "element"), Operand("k", 1, "element")
FEW, MANY = linear(5, 64, 300), linear(33, 70, 300)
FLAT = linear(32, 64, 300, right="mn")
HALF = linear(32, 64, 300, F16, right="mn")
NEGATED = linear(33, 64, 45, left="none", right="none")


def product(plan: Plan) -> Matmul:
    (method,) = (m for m in methods(plan) if isinstance(m, Matmul))
    return method


@pytest.mark.parametrize(
    ("program", "instruction", "left", "right"),
    [
        (FEW, "dot", DIRECT, DIRECT),
        (MANY, "outer", DIRECT, TURNED),
        (FLAT, "outer", DIRECT, ALONG_N),
        (HALF, "outer", TURNED, ALONG_N),  # the left one is of another type than the sums
        (linear(33, 70, 300, right="mn"), "outer", DIRECT, Operand("mn", 1, "element")),  # ends in a part of a panel
        (NEGATED, "outer", PACKED, PACKED),
    ],
    ids=["few", "many", "flat", "half", "odd", "negated"],
)  # fmt: skip
def test_what_is_read_in_place(
    program: Program, instruction: str, left: Operand, right: Operand
) -> None:
    plan = plan_of(program)
    found = product(plan)
    assert (found.instruction, found.left, found.right) == (instruction, left, right)
    assert f"left {left.describe()}, right {right.describe()}" in found.describe()


@pytest.mark.parametrize(
    ("program", "sides"),
    [
        (FEW, {"left": PACKED}),
        (FEW, {"left": TURNED, "right": PACKED}),
        (MANY, {"left": PACKED, "right": PACKED}),
        (FLAT, {"left": PACKED, "right": Operand("mn", 1, "element")}),
        (HALF, {"right": PACKED}),
    ],
)
def test_what_could_be_read_in_place_may_be_packed(
    program: Program, sides: Mapping[str, Any]
) -> None:
    """With the same result."""
    plan = with_methods(plan_of(program), Matmul, **sides)
    verify(plan, program, TARGET)
    values = random_values(program)
    agree(Compiled(program, plan=plan)(values), evaluate(program, values))


@pytest.mark.parametrize(
    ("program", "sides", "words"),
    [
        (NEGATED, {"left": DIRECT}, "the left one is not direct x1 along k"),
        (NEGATED, {"right": TURNED}, "the right one is not element x1 along k"),
        (HALF, {"left": DIRECT}, "the left one is not direct"),
        (MANY, {"right": DIRECT}, "the right one is not direct"),
        (FLAT, {"right": TURNED}, "the right one is not element x1 along k"),
        (FEW, {"right": Operand("k", 4, "async")}, "the right one is not async x4"),
    ],
)
def test_operands_that_tiles_cannot_read_so(
    program: Program, sides: Mapping[str, Any], words: str
) -> None:
    broken = with_methods(plan_of(program), Matmul, **sides)
    with pytest.raises(VerificationError, match=f"cannot be read so: {words}"):
        verify(broken, program, TARGET)


@pytest.mark.parametrize("right", ["k", "mn"])
def test_the_next_panel_is_asked_for(right: str) -> None:
    """By few rows more lines at a time; of what is computed nothing."""
    program = linear(160, 64, 600, right=right)
    plan = plan_of(program)
    asked, own = product(plan).prefetch
    assert (asked.what, asked.at, asked.distance) == ("right", "block", 8)
    assert (own.what, own.at) == ("own", "block")
    assert "right prefetched x8 at block" in show(plan)
    values = random_values(program)
    compiled = Compiled(program, plan=plan)
    assert compiled.source.text.count("const char* const next") == 1
    agree(compiled(values), evaluate(program, values))
    few = product(plan_of(linear(16, 64, 600, right=right))).ahead("block", "right")
    assert 0 < few < 8
    assert not product(plan_of(NEGATED)).ahead("block", "right")


@pytest.mark.parametrize("program", [FLAT, NEGATED])
def test_what_of_a_next_panel_cannot_be_asked_for(program: Program) -> None:
    broken = with_methods(plan_of(program), Matmul, prefetch=(Prefetch("right", "block", 3),))
    with pytest.raises(VerificationError, match="no lines of y's next panel lie so"):
        verify(broken, program, TARGET)


def test_there_are_tiles_for_dots_and_outer_products_only() -> None:
    broken = with_methods(plan_of(FEW), Matmul, instruction="fma")
    with pytest.raises(VerificationError, match="no tiles compute y by fma"):
        verify(broken, FEW, TARGET)


class Small(nn.Module):
    """A product of subnormal numbers, half of each of them, and products with logarithms of these on one side, and of the sums."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(64, 48), nn.Linear(64, 48, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        half, steps = x * 0.5, torch.where(x[:, :48] > 0, self.layer(x), 3.0)
        return self.layer(x), half, self.last(x.log()), self.last(x.log()).exp().log(), steps


def test_subnormal_factors_count_as_zero_in_products_alone() -> None:
    """A processor would take a hundred times as long for them."""
    torch.manual_seed(0)
    model, x = Small().eval(), torch.full((32, 64), 1e-39)
    fast = monotile.compile(model, (x,), target="cpu", options=Options(cache=False))
    product, half, logarithms, last, steps = fast(x)
    assert torch.equal(product, model.layer.bias.expand(32, 48))
    assert torch.equal(half, x * 0.5)
    assert half.min() > 0
    with torch.no_grad():
        want = model(x)
    torch.testing.assert_close(logarithms, want[2], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(last, want[3], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(steps, want[4], rtol=1e-5, atol=1e-4)


def test_subnormal_halves_are_floats_like_others() -> None:
    """The smallest halves are decoded where subnormal floats count as zero."""
    torch.manual_seed(0)
    model, x = nn.Linear(96, 64, bias=False).half(), (torch.randn(48, 96) * 1e-5).half()
    fast = monotile.compile(model, (x,), target="cpu", options=Options(cache=False))
    with torch.no_grad():
        want = model.double()(x.double())
    torch.testing.assert_close(fast(x).double(), want, rtol=0, atol=2**-24)


class Places(nn.Module):
    """The largest of each window of an image, and where they are."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return nn.functional.adaptive_max_pool2d(x, 3, return_indices=True)


def test_positions_in_windows_of_as_many_images_as_the_call_says() -> None:
    """What bounds the images leaves the terms of a window one loop."""
    batch = torch.export.Dim("batch", min=1, max=8)
    model, options = Places(), Options(cache=False)
    fast = monotile.compile(model, (torch.randn(3, 3, 7, 8),), target="cpu", dynamic_shapes=({0: batch},), options=options)  # fmt: skip
    for n in (1, 8):
        x = torch.randn(n, 3, 7, 8)
        assert all(map(torch.equal, fast(x), model(x)))
