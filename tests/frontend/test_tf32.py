"""Where products of float32 may be of TF32: as PyTorch's settings say, or as the options do."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

import monotile
from monotile.choice.chooser import Prefer
from monotile.config import Options
from monotile.errors import VerificationError
from monotile.frontends.torch.capture import functional, to_program
from monotile.frontends.torch.export import export
from monotile.frontends.torch.tf32 import STRICT, Tf32, tf32_of
from monotile.ir.expr import Unary, walk
from monotile.ir.program import Compute, statements
from monotile.kernels.matmul.method import Matmul
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Stage, Step
from monotile.plan.walk import stages_in
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import TARGET, Emulated
from tests.schedule.test_verify import steps


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """PyTorch's own settings, and as they were after each test."""
    found = torch.get_float32_matmul_precision()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        yield
    torch.set_float32_matmul_precision(found)


class Both(nn.Module):
    """A convolution and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(24, 32, 3, padding=1)
        self.linear = nn.Linear(64, 48)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.conv(x).relu())


def marked(model: nn.Module, x: Tensor, allowed: Tf32) -> list[str]:
    """The sums of products that may be of TF32."""
    exported = export(model.eval(), (x,))
    program = to_program(exported, functional(exported), {}, allowed).program
    return [
        s.out.name
        for s in statements(program.body)
        if isinstance(s, Compute)
        and any(isinstance(e, Unary) and e.op == "tf32" for e in walk(s.body))
    ]


def test_what_no_tensor_core_would_multiply_stays_exact() -> None:
    """A depthwise convolution and a convolution of one place have nothing to gain."""
    squeezed = nn.Sequential(
        nn.Conv2d(16, 32, 1), nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 8, 1)
    )  # fmt: skip
    assert marked(squeezed, torch.randn(1, 16, 6, 6), Tf32(True, True)) == ["conv2d_product"]
    several = ["conv2d_product", "conv2d_2_product"]
    assert marked(squeezed, torch.randn(2, 16, 6, 6), Tf32(True, True)) == several
    grouped = nn.Conv2d(16, 32, 3, groups=4)
    assert marked(grouped, torch.randn(1, 16, 6, 6), Tf32(True, True)) == ["conv2d_product"]


def test_by_default_convolutions() -> None:
    assert tf32_of(None) == Tf32(convolutions=True, products=False)
    assert marked(Both(), torch.randn(2, 24, 64), tf32_of(None)) == ["conv1d_product"]


def test_pytorchs_settings_count() -> None:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        assert tf32_of(None) == STRICT
        torch.set_float32_matmul_precision("high")
        assert tf32_of(None) == Tf32(convolutions=False, products=True)
        assert marked(Both(), torch.randn(2, 24, 64), tf32_of(None)) == ["linear_product"]


@pytest.mark.parametrize("wanted", [True, False])
def test_the_option_decides(wanted: bool) -> None:
    assert tf32_of(wanted) == Tf32(wanted, wanted)
    assert len(marked(Both(), torch.randn(2, 24, 64), tf32_of(wanted))) == 2 * wanted


def test_only_float32_is_rounded() -> None:
    x = torch.randn(2, 24, 64)
    assert not marked(Both().half(), x.half(), Tf32(True, True))
    assert not marked(Both().double(), x.double(), Tf32(True, True))


def passes(model: nn.Module, x: Tensor, **options: bool) -> list[int]:
    fast = monotile.compile(
        model, (x,), target="cuda:sm_90a", options=Options(cache=False, **options)
    )
    methods = [s.method for stage in stages_in(fast.plan.body) for s in stage.steps]
    return [m.passes for m in methods if isinstance(m, Matmul) and m.instruction != "fma"]


def test_the_plan_says_how_many_passes() -> None:
    model, x = nn.Sequential(nn.Linear(512, 512)).eval(), torch.randn(128, 512)
    assert passes(model, x) == [3]
    assert passes(model, x, tf32=True) == [1]


def test_a_plan_that_rounds_unasked_is_refused() -> None:
    model, x = nn.Linear(136, 80).eval(), torch.randn(70, 136)
    way = Prefer("blocks", lambda v: v["method"]["instruction"] == "mma")
    made = Emulated(model, (x,), chooser=way)

    replace = msgspec.structs.replace

    def hasty(step: Step) -> Step:
        assert isinstance(step.method, Matmul)
        return replace(step, method=replace(step.method, passes=1))

    with pytest.raises(VerificationError, match="lose precision"):
        verify(steps(made.plan, hasty), made.program, TARGET)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize(
    ("slices", "teams", "sizes"), [(1, 1, (136, 80)), (2, 1, (136, 40)), (1, 2, (45, 170))]
)
def test_three_passes_of_warpgroups(slices: int, teams: int, sizes: tuple[int, int]) -> None:
    """As exact as float32: chunks that end within a line, rows that are not there, tasks that follow each other, operands that are evaluated."""
    model, x = nn.Linear(*sizes).eval(), torch.randn(200, sizes[0])

    def holds(value: Any) -> bool:
        m = value["method"]
        shape = (m["instruction"], m.get("slices", 1), m.get("tasks_at_once", 1))
        return shape == ("wgmma", slices, teams)

    made = Emulated(model, (x,), workers=2, chooser=Prefer("blocks", holds))
    method = next(s for s in made.plan.body if isinstance(s, Stage)).steps[0].method
    assert isinstance(method, Matmul)
    assert (method.instruction, method.passes, method.slices) == ("wgmma", 3, slices)
    (got,) = made(x)
    exact = x.double() @ model.weight.double().T + model.bias.double()
    assert (got - exact).norm() / exact.norm() < 2e-6


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("instruction", ["mma", "wgmma"])
def test_products_are_rounded_to_nearest(instruction: str) -> None:
    model, x = nn.Linear(136, 80).eval(), torch.randn(70, 136)
    exported = export(model, (x,))
    captured = to_program(exported, functional(exported), {}, Tf32(True, True))
    way = Prefer("blocks", lambda v: v["method"]["instruction"] == instruction)
    (got,) = Emulated(captured, (x,), chooser=way)(x)

    def rounded(t: Tensor) -> Tensor:
        return ((t.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).double()

    wanted = rounded(x) @ rounded(model.weight).T + model.bias.double()
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)
    exact = x.double() @ model.weight.double().T + model.bias.double()
    assert 1e-5 < (got - exact).norm() / exact.norm() < 1e-3
