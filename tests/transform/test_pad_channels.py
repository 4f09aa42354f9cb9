"""Images of three channels, read as four: given or computed, and so their kernels."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from monotile.ir.program import Compute
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated


class Stem(nn.Module):
    """A convolution to 64 channels. standardised: of a weight whose rows are standardised in each call. normed: of an image that is
    normalised. shared: both are read by others too."""

    def __init__(self, standardised: bool, normed: bool, shared: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 3, 7, 7) / 12)
        self.register_buffer("mean", torch.rand(3, 1, 1))
        self.standardised, self.normed, self.shared = standardised, normed, shared

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        w = self.weight
        if self.standardised:
            w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
        if self.normed:
            x = F.normalize(x - self.mean, dim=1)
        y = F.conv2d(x, w, stride=2, padding=3)
        return (y, x.amax((2, 3)), w.amax(0)) if self.shared else (y,)


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("standardised", "normed"), [(True, True), (True, False), (False, True), (False, False)])  # fmt: skip
def test_stems(standardised: bool, normed: bool, shared: bool) -> None:
    torch.manual_seed(0)
    model, x = Stem(standardised, normed, shared).half(), torch.randn(2, 3, 34, 38).half()
    run = Emulated(model, (x,), workers=8)
    padded = {n for n in run.plan.places if n.endswith("_padded")}
    assert len(padded) == 2
    made = {s.out.shape for s in run.program.body if isinstance(s, Compute)}
    assert ((64, 3, 7, 7) in made) == (
        standardised and shared
    )  # for nobody else, it is padded as it is made
    for y, z in zip(run(x), model.double()(x.double()), strict=True):
        torch.testing.assert_close(y.double(), z, rtol=2e-2, atol=2e-2)
