"""Normalisations."""

from typing import Any

import pytest
import torch
from torch import nn

from monotile.frontends.torch.capture import capture
from monotile.ir.verify import verify
from tests.frontend.against import check, close, run


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.LayerNorm(6), (2, 3, 6)),
        (lambda: nn.LayerNorm((3, 6), elementwise_affine=False), (2, 3, 6)),
        (lambda: nn.LayerNorm(6, bias=False), (2, 6)),
        (lambda: nn.RMSNorm(6), (2, 3, 6)),
        (lambda: nn.RMSNorm(6, eps=1e-3, elementwise_affine=False), (2, 3, 6)),
        (lambda: nn.BatchNorm1d(3), (4, 3)),
        (lambda: nn.BatchNorm2d(3), (2, 3, 4, 5)),
        (lambda: nn.BatchNorm2d(3, affine=False), (2, 3, 4, 5)),
        (lambda: nn.GroupNorm(2, 6), (2, 6, 4, 5)),
        (lambda: nn.GroupNorm(3, 6, affine=False), (2, 6)),
        (lambda: nn.InstanceNorm2d(3, affine=True), (2, 3, 4, 5)),
        (lambda: nn.InstanceNorm1d(3, track_running_stats=True), (2, 3, 4)),
    ],
)
def test_norms(make: object, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = make().eval()  # type: ignore[operator]
    for name, t in [*model.named_parameters(), *model.named_buffers()]:
        if t.dtype.is_floating_point:
            t.data.uniform_(0.5, 1.5) if "var" in name else t.data.normal_()
    check(
        model.to(dtype),
        ((torch.randn(shape) * 2 + 1).to(dtype),),
        tolerance={torch.bfloat16: 5e-2, torch.float16: 1e-2}.get(dtype),
    )


def test_local_response_norm() -> None:
    check(nn.LocalResponseNorm(3), (torch.randn(2, 5, 4, 4),))


@pytest.mark.parametrize("dim", [0, 1])
def test_weight_norm(dim: int) -> None:
    check(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3), dim=dim), (torch.randn(2, 4),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_batch_norm_keeps_its_statistics_where_pytorch_does(dtype: torch.dtype) -> None:
    """Off the CPU the results for the backward pass are not empty; the meta device stands for a GPU."""

    class Both(nn.Module):
        def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> Any:
            plain = torch.native_batch_norm(x, *rest, False, 0.1, 1e-5)
            return plain, torch._native_batch_norm_legit(x, *rest, False, 0.1, 1e-5)

    x, w, b, mean = torch.randn(2, 3, 4), torch.randn(3), torch.randn(3), torch.randn(3)
    args = [t.to(dtype) for t in (x, w, b, mean, torch.rand(3) + 0.5)]
    captured = capture(Both().eval(), tuple(t.to("meta") for t in args))
    verify(captured.program)
    found = run(captured, tuple(args), {})
    _, _, _, mean, variance = (t.float() for t in args)
    normal, _, _ = torch.native_batch_norm(*args, False, 0.1, 1e-5)
    for k in (0, 3):
        close(found[k], normal, tolerance=1e-2 if dtype is torch.float16 else None)
        kept = (mean, (variance + 1e-5).rsqrt())
        for f, want in zip(found[k + 1 : k + 3], kept, strict=True):
            close(f.astype("float32"), want, tolerance=1e-3 if dtype is torch.float16 else None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rms_norm_adds_the_epsilon_of_what_it_computes_in(dtype: torch.dtype) -> None:
    """Of float32 for 16 bits, as PyTorch does since 2.7: small rows tell."""
    check(nn.RMSNorm(8, dtype=dtype), (torch.full((2, 8), 1e-3, dtype=dtype),), tolerance=5e-3)
