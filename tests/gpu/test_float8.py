"""8-bit floats on a GPU, bit by bit as PyTorch converts them on the CPU."""

import pytest
import torch

import monotile
from monotile.frontends.torch.lower.float8 import saturates
from tests.ir.float8 import HALFWAY, sweep
from tests.models.test_float8 import CODES, FLOAT8, Loaded, Scaled, close

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_casts(dtype: torch.dtype, source: torch.dtype) -> None:
    codes, x = CODES.view(dtype), torch.from_numpy(sweep()).to(source)
    if source.itemsize == 2:
        x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(source)
    fast = monotile.compile(Loaded(), (codes.cuda(), x.cuda()))
    for found, right in zip(fast(codes.cuda(), x.cuda()), Loaded()(codes, x), strict=True):
        assert found.dtype is right.dtype
        a, b = found.cpu().float(), right.float()
        assert torch.equal(a.isnan(), b.isnan())
        number = ~b.isnan()
        assert torch.equal(a[number].view(torch.int32), b[number].view(torch.int32))


def test_what_is_too_large() -> None:
    """As this PyTorch has it, on the GPU as well."""
    x = torch.tensor([HALFWAY, HALFWAY + 1.0, 480, 1e9, float("inf"), -1e9], device="cuda")
    fast = monotile.compile(Loaded(), (CODES.view(FLOAT8[0]).cuda(), x))
    found = fast(CODES.view(FLOAT8[0]).cuda(), x)[-1].float()
    assert torch.equal(found.isnan(), x.to(FLOAT8[0]).float().isnan())
    assert bool(found[1:].isfinite().all()) == saturates()


@pytest.mark.parametrize("rows", [1, 40, 300])
@pytest.mark.parametrize("x", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", FLOAT8[:2], ids=str)
def test_linear(dtype: torch.dtype, x: torch.dtype, rows: int) -> None:
    for blocks in (False, True):
        model, given = Scaled(dtype, blocks).eval(), torch.randn(rows, 64).to(x)
        fast = monotile.compile(Scaled(dtype, blocks).eval().cuda(), (given.cuda(),))
        close(model, fast(given.cuda()), given)
