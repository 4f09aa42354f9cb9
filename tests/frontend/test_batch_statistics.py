"""Batch normalisation by the batch's own statistics in a model in eval mode: running ones are updated."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import monotile

T = torch.Tensor


class Adapted(nn.Module):
    """Layers that stay in training mode, as where a model adapts to what it is given, and a call of the function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(3), nn.BatchNorm1d(3, affine=False)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("variance", torch.ones(3))
        self.mean: T
        self.variance: T

    def forward(self, x: T) -> T:
        y = self.second(self.first(x)) + x
        return F.batch_norm(y, self.mean, self.variance, training=True, momentum=0.3)


def test_running_statistics_are_updated() -> None:
    model, same = Adapted().eval(), Adapted().eval()
    for m in (model, same):
        m.first.train()
    shapes = ({0: Dim("batch", min=2, max=6)},)
    compiled = monotile.compile(model, (torch.randn(4, 3),), target="cpu", dynamic_shapes=shapes)
    for n in (4, 2, 6):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x), same(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dict(model.named_buffers()), dict(same.named_buffers()))
