"""Models and arguments made under `torch.inference_mode()`."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import monotile


class Seen(nn.Module):
    """What is updated is seen through another view, which takes PyTorch's second trace."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(x)
        row = y[0]
        y += 1
        return row, y


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.BatchNorm1d(6))


@pytest.mark.parametrize("make", [_network, Seen])
@pytest.mark.parametrize("where", ["model", "arguments", "both", "all"])
def test_made_in_inference_mode(make: Callable[[], nn.Module], where: str) -> None:
    torch.manual_seed(0)
    with torch.inference_mode(where in ("model", "both", "all")):
        model = make().eval()
    with torch.inference_mode(where in ("arguments", "both", "all")):
        x = torch.randn(3, 6)
    with torch.inference_mode() if where == "all" else nullcontext():
        compiled = monotile.compile(model, (x,))
        found = compiled(x)
    with torch.inference_mode():
        torch.testing.assert_close(found, model(x))
