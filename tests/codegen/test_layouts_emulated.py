"""Networks whose dimensions change places, as their CUDA kernels."""

import pytest
import torch
from torch import nn

from tests.codegen.emulate_model import Emulated
from tests.transform.test_layouts import Excited, Pooled
from tests.transform.test_part_axes import Standardised

CASES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "scaled means": (Excited(), (4, 16, 6, 7)),
    "windows of heads": (Pooled(16), (2, 48, 32)),
    "odd windows of heads": (Pooled(19), (2, 48, 32)),
    "standardised filters": (Standardised(), (2, 8, 6, 5)),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_the_same(name: str) -> None:
    model, shape = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(shape)
    want = model.float().eval()(x)
    (mine,) = Emulated(model.half(), (x.half(),))(x.half())
    torch.testing.assert_close(mine.float(), want, rtol=2e-2, atol=2e-2)
