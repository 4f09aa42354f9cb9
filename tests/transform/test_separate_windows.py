"""Windows of poolings, reduced by one dimension after the other."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from monotile.ir.program import Compute
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated


class Call(nn.Module):
    def __init__(self, f: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> object:
        return self.f(x)


APART = {
    "pyramid": lambda x: torch.cat([x, *(F.max_pool2d(x, k, 1, k // 2) for k in (9, 13))], 1),
    "erosion": lambda x: -F.max_pool2d(-x, (7, 15), 1, (3, 7)),
    "mean": lambda x: F.avg_pool2d(x, 11, 1, 5),
    "mean inside": lambda x: F.avg_pool2d(x, 9, 1, 4, count_include_pad=False),
    "no padding": lambda x: F.max_pool2d(x, 8, 1),
    "strides": lambda x: F.max_pool2d(x, 13, (2, 1), 6),
    "dilated": lambda x: F.max_pool2d(x, 9, 1, 4, 2),
    "volumes": lambda x: F.max_pool3d(x[:, None].expand(-1, 2, -1, -1, -1), 5, 1, 2),
    "sums": lambda x: x.unfold(2, 8, 1).unfold(3, 8, 1).sum((-1, -2)),
    "of none": lambda x: F.max_pool2d(x.where(x > 0.5, float("-inf")), 9, 1, 4),
    "nan": lambda x: F.max_pool2d(x.where(x < 1.5, float("nan")), 9, 1, 4),
}
WHOLE = {
    "small": lambda x: F.max_pool2d(x, 3, 1, 1),
    "disjoint": lambda x: F.max_pool2d(x, 9, 9),
    "all": lambda x: F.adaptive_avg_pool2d(x, 1),
}


@pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", [*APART, *WHOLE])
def test_poolings(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Call((APART | WHOLE)[name]), torch.randn(2, 6, 33, 30).to(dtype)
    run = Emulated(model, (x,), workers=8)
    apart = any(isinstance(s, Compute) and "_rows" in s.out.name for s in run.program.body)
    assert apart == (name in APART)
    (found,), want = run(x), model(x.double())
    rtol = 2e-5 if dtype is torch.float32 else 2e-3
    torch.testing.assert_close(found.double(), want, rtol=rtol, atol=rtol, equal_nan=True)
