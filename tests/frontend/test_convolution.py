"""Convolution, pooling, padding and interpolation."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.frontend.against import check, check_operators


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
        (lambda: nn.Conv1d(4, 6, 3, stride=2, dilation=2, bias=False), (4, 9)),
        (lambda: nn.Conv2d(4, 6, 3, padding=1, stride=2), (2, 4, 7, 6)),
        (lambda: nn.Conv2d(4, 6, (1, 3), padding="same"), (2, 4, 7, 6)),
        (lambda: nn.Conv2d(4, 8, 3, groups=2, dilation=2), (1, 4, 7, 8)),
        (lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1), (1, 4, 5, 5)),
        (lambda: nn.Conv2d(4, 2, 3, padding=1, padding_mode="reflect"), (1, 4, 5, 5)),
        (lambda: nn.Conv3d(2, 3, 2, padding=1), (1, 2, 3, 4, 3)),
        (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), (2, 4, 5)),
        (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2), (2, 4, 4, 3)),
        (lambda: nn.ConvTranspose2d(4, 2, 2, padding=1, dilation=2, bias=False), (1, 4, 4, 3)),
        (lambda: nn.ConvTranspose3d(2, 2, 2, stride=2), (1, 2, 2, 2, 2)),
    ],
)
def test_convolutions(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    check(make(), (torch.randn(shape),))


def test_half_convolution() -> None:
    model = nn.Conv2d(4, 6, 3, padding=1).half()
    check(model, (torch.randn(1, 4, 5, 5).half(),))


def test_pooling() -> None:
    functions: dict[str, Callable[..., Any]] = {
        "max": lambda x, y: F.max_pool2d(x, 2),
        "max_padded": lambda x, y: F.max_pool2d(x, 3, 2, 1),
        "max_ceil": lambda x, y: F.max_pool2d(x, 3, 2, ceil_mode=True),
        "max_dilated": lambda x, y: F.max_pool2d(x, (2, 3), 1, dilation=2),
        "max_indices": lambda x, y: F.max_pool2d(x, 3, 2, 1, return_indices=True),
        "max_1d": lambda x, y: F.max_pool1d(y, 3),
        "max_3d": lambda x, y: F.max_pool3d(x, 2),
        "avg": lambda x, y: F.avg_pool2d(x, 2),
        "avg_padded": lambda x, y: F.avg_pool2d(x, 3, 2, 1),
        "avg_ceil": lambda x, y: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        "avg_inside": lambda x, y: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        "avg_divisor": lambda x, y: F.avg_pool2d(x, 2, divisor_override=3),
        "avg_1d": lambda x, y: F.avg_pool1d(y, 2),
        "avg_3d": lambda x, y: F.avg_pool3d(x, 2),
        "lp": lambda x, y: F.lp_pool2d(x.abs(), 2, 2),
        "adaptive_one": lambda x, y: F.adaptive_avg_pool2d(x, 1),
        "adaptive_ragged": lambda x, y: F.adaptive_avg_pool2d(x, (3, 4)),
        "adaptive_1d": lambda x, y: F.adaptive_avg_pool1d(y, 2),
        "adaptive_max": lambda x, y: F.adaptive_max_pool2d(x, (3, 2)),
        "adaptive_max_indices": lambda x, y: F.adaptive_max_pool2d(x, (3, 2), True),
        "unfold": lambda x, y: F.unfold(x, (2, 3), 1, 1, (2, 1)),
        "unfold_alone": lambda x, y: F.unfold(x[0], (2, 3), 1, (1, 0), (2, 1)),
    }
    check_operators(functions, torch.randn(2, 3, 7, 8), torch.randn(3, 6))


def test_padding() -> None:
    check_operators(
        {
            "constant": lambda x: F.pad(x, (1, 2, 0, 1), value=3.0),
            "cut": lambda x: F.pad(x, (-1, 2, 1, -2)),
            "reflect": lambda x: F.pad(x, (2, 1, 3, 2), "reflect"),
            "replicate": lambda x: F.pad(x, (2, 1, 3, 2), "replicate"),
            "circular": lambda x: F.pad(x, (2, 1, 3, 2), "circular"),
        },
        torch.randn(2, 3, 5, 4),
    )


def test_interpolation() -> None:
    check_operators(
        {
            "nearest": lambda x: F.interpolate(x, scale_factor=2),
            "nearest_size": lambda x: F.interpolate(x, (7, 3)),
            "nearest_down": lambda x: F.interpolate(x, scale_factor=0.5),
            "nearest_exact": lambda x: F.interpolate(x, (7, 3), mode="nearest-exact"),
            "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            "bilinear_same": lambda x: F.interpolate(x, x.shape[2:], mode="bilinear"),
            "bilinear_size": lambda x: F.interpolate(x, (7, 3), mode="bilinear"),
            "bilinear_corners": lambda x: F.interpolate(
                x, (7, 9), mode="bilinear", align_corners=True
            ),
            "bicubic": lambda x: F.interpolate(x, (7, 9), mode="bicubic"),
            "bicubic_corners": lambda x: F.interpolate(
                x, (3, 9), mode="bicubic", align_corners=True
            ),
            **{
                f"{mode}_antialias_{size}_{corners}": lambda x, m=mode, n=size, c=corners: (
                    F.interpolate(x, n, mode=m, antialias=True, align_corners=c)
                )
                for mode in ("bilinear", "bicubic")
                for size in ((2, 3), (9, 4), (1, 1))
                for corners in (True, False)
            },
            "antialias_factor": lambda x: F.interpolate(
                x, scale_factor=0.6, mode="bilinear", antialias=True
            ),
            "linear": lambda x: F.interpolate(x[0], 11, mode="linear"),
            "trilinear": lambda x: F.interpolate(x[None], (5, 3, 9), mode="trilinear"),
        },
        torch.randn(2, 3, 4, 6),
    )


def test_grid_sampling() -> None:
    check_operators(
        {
            "bilinear": lambda x, g: F.grid_sample(x, g, align_corners=False),
            "nearest": lambda x, g: F.grid_sample(x, g, mode="nearest", align_corners=True),
            "border": lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=False),
        },
        torch.randn(2, 3, 4, 5),
        torch.rand(2, 3, 4, 2) * 2.4 - 1.2,
    )


def test_positions_that_are_no_numbers_are_clamped() -> None:
    ends = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0, -1.0, 0.0])
    check_operators(
        {
            f"{mode}_{padding}": lambda x, g, m=mode, p=padding: F.grid_sample(
                x, g, mode=m, padding_mode=p, align_corners=True
            )
            for mode in ("bilinear", "nearest")
            for padding in ("border", "reflection")
        },
        torch.randn(2, 3, 4, 5),
        torch.cartesian_prod(ends, ends).reshape(1, 6, 6, 2).repeat(2, 1, 1, 1),
    )
