"""Products with few columns, padded to tiles."""

import pytest
import torch
from torch import nn

import monotile
from monotile.frontends.torch.capture import capture
from monotile.ir.program import Compute
from monotile.kernels.draft import Context
from monotile.kernels.registry import tiled
from monotile.targets.cuda.target import cuda_target
from monotile.transform.layout.pad_outputs import pad_outputs
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated

CUDA = cuda_target("sm_90a")


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("outputs", [1, 3])
def test_a_convolution_to_few_channels(outputs: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, outputs, 3, padding=1), nn.Sigmoid())
    x = torch.randn(1, 64, 66, 62)
    run = Emulated(model, (x,), workers=8)
    wide = next(s for s in run.program.body if isinstance(s, Compute) and s.out.name.endswith("wide"))  # fmt: skip
    assert tiled(wide, Context.of(run.program, CUDA))
    (found,) = run(x)
    torch.testing.assert_close(found.double(), model.double()(x.double()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Conv2d(64, 4, 3), (1, 64, 64, 64)),  # enough columns
        (nn.Conv2d(4, 3, 1), (1, 4, 64, 64)),  # little to add up
        (nn.Linear(4096, 3), (1, 4096)),  # few rows
        (nn.Conv2d(64, 64, 3, groups=64), (1, 64, 64, 64)),
    ],
)
def test_what_stays(model: nn.Module, x: tuple[int, ...]) -> None:
    program = capture(model, (torch.randn(x),)).program
    assert pad_outputs(program) is program


def test_on_the_cpu() -> None:
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Conv2d(64, 3, 3, padding=1), nn.Sigmoid()), torch.randn(1, 64, 66, 62)  # fmt: skip
    run = monotile.compile(model, (x,), target="cpu", options=monotile.Options(cache=False))
    assert any(n.endswith("_wide") for n in run.plan.places)
    with torch.no_grad():
        torch.testing.assert_close(
            run(x).double(), model.double()(x.double()), rtol=1e-5, atol=1e-5
        )
