"""Factors of TF32 that are rounded where they are made."""

import numpy as np
import pytest
import torch
from torch import nn

from monotile.config import Options
from monotile.frontends.torch.capture import Captured, functional, to_program
from monotile.frontends.torch.export import export
from monotile.frontends.torch.tf32 import STRICT, Tf32
from monotile.ir.dtype import DType
from monotile.ir.expr import Unary, walk
from monotile.ir.program import Compute, Loop, Program, statements
from monotile.ir.scalar import unary
from monotile.targets.cpu.target import cpu_target
from monotile.transform.fusion.inline import inline_views
from monotile.transform.legalise.round_factors import round_factors
from monotile.transform.roll.roll import roll
from monotile.transform.simplify.simplify import simplify
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import TARGET, Emulated

ALLOWED = Tf32(convolutions=True, products=True)


def capture(model: nn.Module, x: torch.Tensor, tf32: Tf32 = ALLOWED) -> Captured:
    exported = export(model, (x,), None)
    return to_program(exported, functional(exported), tf32=tf32)


class Residual(nn.Module):
    """What `first` gives is read by a product and by a sum; what `second` gives is an output as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(32, 32, 1) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.first(x).relu()
        y = self.second(x).relu()
        return y, x + self.third(y)


def operations(program: Program, op: str) -> list[str]:
    every = (s for s in statements(program.body) if isinstance(s, Compute))
    return [s.out.name for s in every for e in walk(s.body) if isinstance(e, Unary) and e.op == op]


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("size", [9, 16])
def test_activations_and_copies_of_weights(size: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(32, 64, 3, padding=1), nn.SiLU(), nn.MaxPool2d(2), nn.Conv2d(64, 32, 3, padding=1)
    )
    x = torch.randn(1, 32, size, size)
    run = Emulated(capture(model, x), (x,), workers=6)
    rounded = operations(run.program, "to_tf32")
    assert len(rounded) == 4  # both weights, the input in another order, what is pooled
    assert len(operations(run.program, "is_tf32")) == 4
    (found,) = run(x)
    torch.testing.assert_close(found.double(), model.double()(x.double()), rtol=2e-3, atol=2e-3)


def test_what_others_read_stays() -> None:
    program = capture(Residual(), torch.randn(1, 32, 8, 8)).program
    assert operations(program, "tf32")
    assert round_factors(program, TARGET) is program


class Repeated(nn.Module):
    """Equal layers, which become a loop; `kept`: a sum reads what it begins with as well."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.kept, self.first = kept, nn.Conv2d(16, 32, 1)
        self.layers = nn.ModuleList(nn.Conv2d(32, 32, 1) for _ in range(4))
        self.last = nn.Conv2d(32, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x = self.first(x).relu()
        for layer in self.layers:
            y = layer(y).relu()
        return self.last(y + x if self.kept else y)


@pytest.mark.parametrize("kept", [False, True])
def test_what_a_loop_carries(kept: bool) -> None:
    captured = capture(Repeated(kept), torch.randn(1, 16, 8, 8)).program
    program = roll(simplify(inline_views(captured), Options()), Options())
    (loop,) = (s for s in statements(program.body) if isinstance(s, Loop))
    (carry,) = loop.carried
    rounded = operations(round_factors(program, TARGET), "to_tf32")
    made = {carry.init.name, carry.result.name}
    assert not made & set(rounded) if kept else made <= set(rounded)


@pytest.mark.parametrize("pooled", [False, True])
def test_what_is_pooled_is_rounded_before(pooled: bool) -> None:
    pool = nn.MaxPool2d(2) if pooled else nn.AvgPool2d(2)
    model = nn.Sequential(nn.Conv2d(32, 32, 1), nn.ReLU(), pool, nn.Conv2d(32, 32, 1))
    program = inline_views(capture(model, torch.randn(1, 32, 8, 8)).program)
    rounded = operations(round_factors(program, TARGET), "to_tf32")
    relu = next(n for n in (s.out.name for s in statements(program.body)) if "relu" in n)
    assert (relu in rounded) == pooled


def test_only_where_products_are_of_tf32() -> None:
    x = torch.randn(1, 32, 8, 8)
    model = nn.Sequential(nn.Conv2d(32, 32, 1), nn.ReLU(), nn.Conv2d(32, 32, 1))
    program = capture(model, x).program
    assert round_factors(program, TARGET) is not program
    assert round_factors(program, cpu_target(workers=2)) is program
    strict = capture(model, x, STRICT).program
    assert round_factors(strict, TARGET) is strict


def test_the_nearest_value() -> None:
    ulp = 2.0**-10
    x = np.array([1 + ulp / 2, 1 + ulp * 0.49, -1 - ulp / 2, np.inf, -np.inf, 0.0], np.float32)
    found = unary("to_tf32", x, DType.F32)
    np.testing.assert_array_equal(found, [1 + ulp, 1, -1 - ulp, np.inf, -np.inf, 0])
    assert np.isnan(unary("to_tf32", np.array([np.nan], np.float32), DType.F32)).all()
    many = np.random.default_rng(0).standard_normal(10000).astype(np.float32)
    near = unary("to_tf32", many, DType.F32)
    assert not np.any(near.view(np.uint32) & 0x1FFF)
    assert np.max(np.abs(near - many) / np.abs(many)) <= 2.0**-11
