"""Models that read and assign `p.data` in their forward."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import monotile
from monotile.errors import CaptureError
from monotile.frontends.torch.capture import capture

T = torch.Tensor


class Merged(nn.Module):
    """Two convolutions merged into one in each call, as SPAN and other re-parametrised networks have it."""

    scale: T

    def __init__(self) -> None:
        super().__init__()
        self.first, self.skip = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)
        self.merged = nn.Conv2d(3, 3, 3, padding=1)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: T) -> tuple[T, T]:
        weight = self.first.weight.data.clone()
        before = self.merged(x)
        self.scale.data = self.scale.data * 2
        self.merged.weight.data = weight + nn.functional.pad(self.skip.weight.data, (1, 1, 1, 1))
        self.merged.bias.data = self.first.bias.data + self.skip.bias.data * self.scale
        return before, self.merged(x)


@pytest.mark.parametrize("gradients", [False, True])
def test_parameters_and_buffers(gradients: bool) -> None:
    """Which later calls see, as in eager PyTorch."""
    torch.manual_seed(0)
    model, x = Merged().eval().requires_grad_(gradients), torch.randn(1, 3, 8, 8)
    eager = copy.deepcopy(model)
    fast = monotile.compile(model, (x,), target="cpu")
    for given in (x, torch.randn(1, 3, 8, 8)):
        for found, want in zip(fast(given), eager(given), strict=True):
            torch.testing.assert_close(found, want)
    for found, want in zip(model.state_dict().values(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(found, want)


class Other(nn.Module):
    def __init__(self, way: Any) -> None:
        super().__init__()
        self.way, self.layer = way, nn.Linear(4, 4)

    def forward(self, x: T) -> T:
        return self.way(self, x)


def _of_another_shape(m: Other, x: T) -> T:
    m.layer.weight.data = torch.ones(5, 4)
    return m.layer(x)


def _no_state(m: Other, x: T) -> T:
    y = m.layer(x)
    y.data = x * 2
    return y


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (_of_another_shape, r"float32\[4, 4\] on cpu, is assigned other data .* float32\[5, 4\]"),
        (_no_state, r"no parameter or buffer .*: assign the tensor itself"),
    ],
)
def test_what_is_refused(way: Any, words: str) -> None:
    with pytest.raises(CaptureError, match=rf"{words}.*"):
        capture(Other(way), (torch.randn(2, 4),))
