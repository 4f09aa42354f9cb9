"""Products over one axis instead of several that lie one behind the other."""

import pytest
import torch
from torch import nn

from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.ir.program import Compute, statements
from monotile.pipeline import transform
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.models.accuracy import error, exact


def longest(model: nn.Module, *shape: int) -> tuple[int, ...]:
    """The reduce axes of the longest sum."""
    found = capture(model.eval().requires_grad_(False), (torch.randn(shape),))
    program, _ = transform(found.program, found.constants, Options())
    sums = [s.reduce for s in statements(program.body) if isinstance(s, Compute) and s.reduce]
    return max((tuple(a.extent for a in reduce) for reduce in sums), key=len)


def test_a_window_as_large_as_its_image() -> None:
    assert longest(nn.Conv2d(16, 8, 7), 1, 16, 7, 7) == (784,)


@pytest.mark.parametrize(
    "model",
    [nn.Conv2d(16, 8, 3), nn.Conv2d(16, 8, (3, 7)), nn.Conv2d(16, 8, 7, padding=1)],
    ids=["moved", "moved down", "padded"],
)
def test_smaller_windows_stay(model: nn.Module) -> None:
    assert len(longest(model, 1, 16, 7, 7)) == 3


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("batch", [1, 16])
def test_on_a_gpu(batch: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(32, 64, 7), nn.ReLU(), nn.Flatten())
    model, x = model.half().requires_grad_(False), torch.randn(batch, 32, 14, 14).half()
    (got,) = Emulated(model, (x,))(x)
    assert error(got, exact(model, (x,))) < 1e-3
