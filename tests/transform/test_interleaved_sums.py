"""Sums in the order in which activations lie."""

import pytest
import torch
from torch import Tensor, nn

from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.ir.program import Compute, statements
from monotile.pipeline import for_target, transform
from monotile.targets.target import Target
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.models.accuracy import error, exact
from tests.schedule.programs import H100


class HeadsLast(nn.Module):
    """Heads that are joined behind their own columns, and a product."""

    def __init__(self, heads: int, columns: int) -> None:
        super().__init__()
        self.out = nn.Linear(heads * columns, 48)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(x).permute(0, 2, 3, 1).flatten(2))


class Subsampled(nn.Module):
    """Frames of channels and bands, flattened, and a product."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 32, 3, padding=1)
        self.out = nn.Linear(32 * bands, 48)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.conv(x).transpose(1, 2).flatten(2))


def sums(model: nn.Module, x: Tensor, target: Target = H100) -> list[tuple[int, ...]]:
    """The reduce axes of every product with a weight's copy."""
    found = capture(model.eval().requires_grad_(False), (x,))
    program, _ = transform(found.program, found.constants, Options())
    program, _ = for_target(program, target)
    return [
        tuple(a.extent for a in s.reduce)
        for s in statements(program.body)
        if isinstance(s, Compute) and s.reduce and "in_order" in str(s.body)
    ]


def test_heads_behind_columns() -> None:
    assert sums(HeadsLast(3, 32).half(), torch.randn(1, 3, 100, 32).half()) == [(3, 32)]


def test_few_rows_or_narrow_columns_stay() -> None:
    assert not sums(HeadsLast(3, 32).half(), torch.randn(1, 3, 20, 32).half())
    assert not sums(HeadsLast(3, 20).half(), torch.randn(1, 3, 100, 20).half())


def test_parts_that_are_whole_vectors_stay() -> None:
    """Patches that are merged: two rows of two, each with channels that lie side by side."""

    class Merged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(128, 48)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(x)
            parts = (x[:, k % 2 :: 2, k // 2 :: 2] for k in range(4))
            return self.out(torch.cat([*parts], -1))

    assert not sums(Merged().half(), torch.randn(1, 32, 32, 32).half())


def test_flattened_channels() -> None:
    found = sums(Subsampled(5).half(), torch.randn(1, 8, 80, 5).half())
    assert found in ([(5, 32)], [(160,)])


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (HeadsLast(3, 32), (2, 3, 70, 32)),
        (HeadsLast(12, 16), (1, 12, 96, 16)),
        (Subsampled(5), (1, 8, 80, 5)),
    ],
    ids=["heads", "many heads", "bands"],
)
def test_on_a_gpu(model: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model, x = model.half().requires_grad_(False), torch.randn(shape).half()
    (got,) = Emulated(model, (x,))(x)
    assert error(got, exact(model, (x,))) < 1e-3
