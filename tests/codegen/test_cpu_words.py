"""Products of words on the CPU: tiles where the processor has them, else the same panels by vectors."""

import numpy as np
import pytest
import torch
from torch import Tensor as Tensors
from torch import nn

import monotile
from monotile.config import Options
from monotile.errors import VerificationError
from monotile.frontends.torch.capture import capture
from monotile.ir.dtype import DType
from monotile.ir.evaluate import evaluate
from monotile.ir.expr import Binary, Expr, Load, Tensor, Unary, cast
from monotile.ir.program import Program, Weight, compute
from monotile.kernels.common.operand import Operand
from monotile.kernels.draft import Context
from monotile.kernels.matmul.method import Matmul
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan
from monotile.targets.cpu.target import cpu_target
from monotile.targets.target import Target
from tests.codegen.cpu_programs import linear
from tests.codegen.cpu_run import Array, Compiled, random_values
from tests.codegen.test_cpu import agree
from tests.codegen.test_cpu_methods import methods
from tests.schedule.test_verify_threads import with_methods

BF16, I8, U8, I32 = DType.BF16, DType.I8, DType.U8, DType.I32


def machine(*instructions: str, vector: int = 64) -> Target:
    return cpu_target(workers=2, vector_bytes=vector, instructions=frozenset(instructions))


TILES = machine("vnni", "amx.bf16", "amx.int8")
TARGETS = {
    "tiles": TILES,
    "vectors": machine(),
    "narrow": machine(vector=32),
}


def product_of(plan: Plan, program: Program, target: Target = TILES) -> Matmul:
    verify(plan, program, target)
    (found,) = (m for m in methods(plan) if isinstance(m, Matmul))
    return found


def rounded(m: int, n: int, k: int, *, left: bool, right: bool) -> Program:
    """x w, of which sides are computed and rounded."""
    x, w, y = Tensor("x", (m, k), BF16), Tensor("w", (n, k), BF16), Tensor("y", (m, n), BF16)

    def side(t: Tensor, i: Expr, r: Expr, *, computed: bool) -> Expr:
        value = cast(Load(t, (i, r)), DType.F32)
        return cast(cast(Unary("exp", value), BF16), DType.F32) if computed else value

    def body(i: Expr, j: Expr, r: Expr) -> Expr:
        return Binary("mul", side(x, i, r, computed=left), side(w, j, r, computed=right))

    return Program((x,), (Weight(w, ("w",)),), (compute(y, body, reduce=(k,), combiner="sum"),), (y,))  # fmt: skip


PROGRAMS = {
    "whole": (linear(64, 64, 64, BF16), "direct", "k"),
    "ends": (linear(45, 70, 1101, BF16), "direct", "k"),
    "few": (linear(16, 33, 77, BF16), "direct", "k"),
    "less than a step": (linear(33, 96, 15, BF16), "direct", "k"),
    "side by side": (linear(40, 70, 530, BF16, right="mn"), "direct", "mn"),
    "turned": (linear(40, 70, 530, BF16, left="mn"), "element", "k"),
    "computed": (rounded(40, 70, 45, left=True, right=True), "element", "none"),
    "computed columns": (rounded(40, 70, 530, left=False, right=True), "direct", "none"),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_sixteen_bits(name: str, target: str) -> None:
    program, left, right = PROGRAMS[name]
    plan = schedule(program, TILES, Options())
    found = product_of(plan, program)
    assert (found.instruction, found.left.copy, found.right.major) == ("words", left, right)
    values = random_values(program)
    fast = Compiled(program, plan=plan, target=TARGETS[target])
    agree(fast(values), evaluate(program, values))


@pytest.mark.parametrize("target", TARGETS)
def test_no_number_stays_in_its_row(target: str) -> None:
    """What is beyond the end of a line is multiplied by zeros, and must not be NaN."""
    program = linear(33, 40, 35, BF16)
    values = random_values(program)
    x = values["x"].astype(np.float32)
    x[5, 0] = np.nan
    values["x"] = x.astype(values["x"].dtype)
    plan = schedule(program, TILES, Options())
    (z,) = Compiled(program, plan=plan, target=TARGETS[target])(values)
    rows = np.isnan(z.astype(np.float32)).nonzero()[0]
    assert set(rows.tolist()) == {5}


def array(x: Tensors) -> Array:
    if x.dtype is torch.bfloat16:
        return x.detach().view(torch.int16).numpy().view(BF16.numpy)
    return x.detach().numpy()


def for_tiles(model: nn.Module, x: Tensors) -> tuple[Program, dict[str, Array], Context]:
    """The model's Program for tiles, and what it is given."""
    found = capture(model.eval(), (x,))
    program, constants = transform(found.program, found.constants, Options())
    program, context = for_target(program, TILES)
    values = {n: array(p) for n, p in found.parameters.items()} | dict(constants)
    return program, values | {program.inputs[0].name: array(x)}, context


class Bytes(nn.Module):
    """x w, in integers; computed: of bytes that are made of others."""

    def __init__(self, n: int, k: int, dtype: torch.dtype, *, turned: bool, computed: bool) -> None:
        super().__init__()
        self.turned, self.computed = turned, computed
        self.w = nn.Buffer(integers((k, n) if turned else (n, k), dtype))

    def forward(self, x: Tensors) -> Tensors:
        w = self.w.t() if self.turned else self.w
        x = x ^ 3 if self.computed else x
        return (x.to(torch.int32)[:, None] * w.to(torch.int32)).sum(-1, dtype=torch.int32)


def integers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensors:
    generator, info = torch.Generator().manual_seed(sum(shape)), torch.iinfo(dtype)
    return torch.randint(info.min, info.max + 1, shape, dtype=dtype, generator=generator)


@pytest.mark.parametrize("left", [torch.int8, torch.uint8])
@pytest.mark.parametrize("right", [torch.int8, torch.uint8])
@pytest.mark.parametrize(("turned", "computed"), [(False, False), (True, True)])
def test_eight_bits(left: torch.dtype, right: torch.dtype, *, turned: bool, computed: bool) -> None:
    model = Bytes(70, 1101, right, turned=turned, computed=computed)
    x = integers((45, 1101), left)
    program, values, context = for_tiles(model, x)
    plan = schedule(program, TILES, Options(), context)
    verify(plan, program, TILES)
    assert [m.instruction for m in methods(plan) if isinstance(m, Matmul)] == ["words"]
    (got,) = Compiled(program, plan=plan, target=TILES)(values)
    np.testing.assert_array_equal(got, model(x).numpy())


def test_rows_that_only_a_block_has_in_one_line() -> None:
    """Of rows in another order a block is read in place, but not all that a task sums."""

    class Moved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 96)

        def forward(self, x: Tensors) -> Tensors:
            return self.linear(x.transpose(0, 1))

    torch.manual_seed(0)
    program, values, context = for_tiles(Moved().bfloat16(), torch.randn(32, 5, 32).bfloat16())
    plan = schedule(program, TILES, Options(), context)
    assert product_of(plan, program).left.copy == "element"
    agree(Compiled(program, plan=plan, target=TILES)(values), evaluate(program, values))


@pytest.mark.parametrize("form", ["int4", "nf4"])
def test_codes(form: str) -> None:
    """Weights that are stored as codes are decoded into lines of a panel."""
    torch.manual_seed(0)
    model = monotile.pack(nn.Linear(256, 70).bfloat16(), form)
    x = torch.randn(40, 256).bfloat16()
    program, values, context = for_tiles(model, x)
    plan = schedule(program, TILES, Options(), context)
    assert product_of(plan, program).right.copy == "decode"
    agree(Compiled(program, plan=plan, target=TILES)(values), evaluate(program, values))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("width", "kernel", "stride"),
    [(14, 3, 1), (40, 5, 1), (30, 3, 2)],
    ids=["short", "long", "far"],
)
def test_windows(target: str, width: int, kernel: int, stride: int) -> None:
    """Columns that lie side by side in an image with its padding, as far as a row of it goes; or not, where windows are two apart."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 20, 1)  # what the second one reads is made by the kernel
    model = nn.Sequential(
        first, nn.ReLU(), nn.Conv2d(20, 40, kernel, stride, kernel // 2)
    ).bfloat16()
    x = torch.randn(2, 3, 9, width).bfloat16()
    program, values, context = for_tiles(model, x)
    plan = schedule(program, TILES, Options(), context)
    verify(plan, program, TILES)
    fast = Compiled(program, plan=plan, target=TARGETS[target])
    assert ("mt_words_of_windows_bf16(" in fast.source.text) == (stride == 1)
    agree(fast(values), evaluate(program, values))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"block_m": 24}, "a block is no 24 x 32"),
        ({"block_n": 64}, "a block is no 32 x 64"),
        ({"block_k": 40}, "40 along k are no whole steps"),
        ({"right": Operand("k", 1, "direct")}, "not packed"),
        ({"left": Operand("mn", 1, "direct")}, "cannot be read so"),
    ],
)
def test_blocks_that_nothing_multiplies(fields: dict[str, object], words: str) -> None:
    program = linear(64, 64, 64, BF16)
    plan = with_methods(schedule(program, TILES, Options()), Matmul, sums=None, **fields)
    with pytest.raises(VerificationError, match=words):
        verify(plan, program, TILES)


def test_a_target_without_them_has_none() -> None:
    program = linear(64, 64, 64, BF16)
    plan = schedule(program, TILES, Options())
    with pytest.raises(VerificationError, match=r"words of y .* there are none of bfloat16"):
        verify(plan, program, machine())
    other = schedule(program, machine(), Options())
    assert product_of(other, program, machine()).instruction == "outer"
