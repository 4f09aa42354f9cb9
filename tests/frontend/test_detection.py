"""torchvision's operators for detection, and the steps of its detectors that depend on data."""

from typing import Any

import pytest
import torch
from torch import nn

import monotile
from tests.frontend.torchvision_operators import register

T = torch.Tensor
OPERATORS = register()


def boxes(n: int, span: float = 20.0, size: float = 12.0) -> T:
    at = torch.rand(n, 2) * span
    return torch.cat([at, at + torch.rand(n, 2) * size], 1)


@pytest.mark.parametrize("limit", [0.5, 0.1, 0.7])
def test_nms(limit: float) -> None:
    torch.manual_seed(0)

    def model(b: T, s: T) -> tuple[T, T]:
        chosen = s > 0.5
        return OPERATORS.nms(b, s, limit), OPERATORS.nms(b[chosen], s[chosen], limit)

    calls = [(boxes(40), torch.rand(40)) for _ in range(3)]
    calls.append((boxes(40, 1000.0), torch.rand(40)))  # apart
    calls.append((torch.zeros(40, 4), torch.rand(40)))  # empty: of no union
    calls.append((boxes(1).expand(40, 4).contiguous(), torch.rand(40)))
    calls.append((boxes(40).round(), torch.rand(40).mul(4).round() / 4))  # ties
    compiled = monotile.compile(model, calls[0], target="cpu")
    assert compiled.kernels == 1
    for call in calls:
        for found, want in zip(compiled(*call), model(*call), strict=True):
            assert torch.equal(found, want)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("ratio", [2, -1])
def test_roi_align(aligned: bool, ratio: int) -> None:
    torch.manual_seed(0)

    def model(x: T, rois: T) -> T:
        return OPERATORS.roi_align(x, rois, 0.25, 3, 2, ratio, aligned)

    x = torch.randn(2, 3, 8, 10)
    first = torch.randint(0, 2, (5, 1)).float()
    calls = [torch.cat([first, b], 1) for b in (boxes(5, 30, 30) - 6, boxes(5, 60, 1), boxes(5, 30, 0))]  # fmt: skip
    compiled = monotile.compile(model, (x, calls[0]), target="cpu")
    for rois in calls:
        torch.testing.assert_close(compiled(x, rois), model(x, rois), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("groups", "offset_groups", "masked", "stride"),
    [(1, 1, True, 1), (2, 2, True, 2), (3, 1, False, 1), (1, 3, True, 1)],
)
def test_deform_conv2d(groups: int, offset_groups: int, masked: bool, stride: int) -> None:
    torch.manual_seed(0)
    height, width = (5 - 1) // stride + 1, (6 - 1) // stride + 1

    def model(x: T, weight: T, offset: T, mask: T, bias: T) -> T:
        geometry = (stride, stride, 1, 1, 1, 1, groups, offset_groups)
        return OPERATORS.deform_conv2d(x, weight, offset, mask, bias, *geometry, masked)

    args = (
        torch.randn(2, 6, 5, 6), torch.randn(6, 6 // groups, 3, 3), 3 * torch.randn(2, 18 * offset_groups, height, width),
        torch.rand(2, 9 * offset_groups, height, width), torch.randn(6),
    )  # fmt: skip
    compiled = monotile.compile(model, args, target="cpu")
    torch.testing.assert_close(compiled(*args), model(*args), rtol=1e-4, atol=1e-4)


class Heads(nn.Module):
    """Boxes of two levels, chosen as torchvision's RPN and RoI heads do; with a table that the first call makes."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.table = nn.Linear(3 * 9, 4), None

    def forward(self, fine: T, coarse: T, given: T, scores: T) -> tuple[T, T]:
        if self.table is None:
            self.table = [2.0 ** float(torch.tensor(0.3 / k).log2().round()) for k in (1, 2)]
        large = torch.where((given[:, 2:] - given[:, :2]).amin(1) >= 1)[0]
        given, scores = given[large], scores[large]
        if given.numel() == 0:
            return given, scores
        kept = OPERATORS.nms(given, scores, 0.6)[:8]
        given, scores = given[kept], scores[kept]
        level = ((given[:, 2:] - given[:, :2]).prod(1) > 40).long()
        found = given.new_zeros(len(given), 3, 3, 3)
        for k, x in enumerate((fine, coarse)):
            own = torch.where(level == k)[0]
            rois = torch.cat([given.new_zeros(len(own), 1), given[own]], 1)
            found[own] = OPERATORS.roi_align(x, rois, self.table[k], 3, 3, 2, False)
        best = self.score(found.flatten(1)).softmax(-1).amax(1)
        sure = torch.where(best > 0.3)[0]
        return given[sure], best[sure]


def test_heads_of_a_detector() -> None:
    torch.manual_seed(0)
    model = Heads().eval()
    maps = torch.randn(1, 3, 8, 8), torch.randn(1, 3, 4, 4)
    calls: list[Any] = [(*maps, boxes(20), torch.rand(20)) for _ in range(3)]
    calls.append((*maps, boxes(20, size=0.5), torch.rand(20)))  # none is large enough
    compiled = monotile.compile(model, calls[0], target="cpu")
    assert compiled.kernels == 1
    for call in calls:
        with torch.no_grad():
            torch.testing.assert_close(compiled(*call), model(*call), rtol=1e-4, atol=1e-5)
