"""Views of tensors with open sizes: their shapes are those that the model states. Quotients of sizes."""

from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim
from torch.utils._sympy.functions import FloorDiv

from monotile.frontends.torch.export import export
from monotile.frontends.torch.sizes.quotients import quotients_are_simple
from tests.conftest import wide
from tests.frontend.sized import check

SIDE = 3  # of a window
SYMBOLS: Any = sympy.symbols("a b c", integer=True, positive=True)
A, B, C = SYMBOLS
quotient: Any = FloorDiv


class Windows(nn.Module):
    """Layers of Swin's kind: each pads an image to whole windows, mixes every window and takes the windows apart again."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(SIDE * SIDE, SIDE * SIDE) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, h, w, c = x.shape
        for layer in self.layers:
            y = F.pad(x, (0, 0, 0, (SIDE - w % SIDE) % SIDE, 0, (SIDE - h % SIDE) % SIDE))
            b, high, long, _ = y.shape
            y = y.view(b, high // SIDE, SIDE, long // SIDE, SIDE, c).permute(0, 1, 3, 2, 4, 5)
            y = y.contiguous().view(-1, SIDE, SIDE, c).view(-1, SIDE * SIDE, c)
            y = layer(y.transpose(1, 2)).transpose(1, 2).contiguous().view(-1, SIDE, SIDE, c)
            y = y.view(-1, high // SIDE, long // SIDE, SIDE, SIDE, c).permute(0, 1, 3, 2, 4, 5)
            x = x + y.contiguous().view(-1, high, long, c)[:, :h, :w]
        return x


def image(batch: int, height: int, width: int) -> tuple[torch.Tensor]:
    return (torch.randn(batch, height, width, 2),)


SHAPES = (
    {0: Dim("b", min=1, max=3), 1: 2 * Dim("h", min=1, max=4), 2: 2 * Dim("w", min=1, max=4)},
)


@pytest.mark.wide
@pytest.mark.parametrize("layers", [1, wide(2)])
def test_windows_of_open_images(layers: int) -> None:
    check(Windows(layers), image, SHAPES, [(1, 2, 6), (3, 8, 8), (2, 4, 8), (1, 8, 2), (2, 4, 4)])


def test_stated_numbers_are_kept() -> None:
    """A window's side is a number, no quotient of sizes, which the next layer's sizes would be made of."""
    exported = export(Windows(2), image(2, 4, 8), dynamic_shapes=SHAPES)
    made = (n for n in exported.graph.nodes if n.target is torch.ops.aten.view.default)
    windows = [shape for n in made if len(shape := n.meta["val"].shape) == 6]
    assert len(windows) == 4
    for shape in windows:
        assert [n for n in shape if not isinstance(n, torch.SymInt)].count(SIDE) == 2


@pytest.mark.parametrize(
    ("above", "below", "wanted"),
    [
        (6 * A * B, 4 * A, quotient(3 * B, 2)),
        (6 * A * quotient(B, 4), 9 * A * C, quotient(quotient(B, 4) * 2, 3 * C)),
        (A * B + A * C, A * (B + 1), quotient(B + C, B + 1)),
        (2 * (A + 3) * B, 4 * B * C, quotient(A + 3, 2 * C)),
    ],
)
def test_quotients_of_sizes(above: Any, below: Any, wanted: Any) -> None:
    """They are what PyTorch makes of them."""
    assert quotient.eval(above, below) == wanted
    with quotients_are_simple():
        assert quotient.eval(above, below) == wanted
        assert sympy.simplify(A * (B + C) - A * B - A * C) == 0
        assert sympy.simplify(A * (B + C) / (B + C)) == A
