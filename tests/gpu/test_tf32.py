"""Products of float32 on tensor cores: in all their bits, and of TF32 as precise as PyTorch's."""

import pytest
import torch
from torch import Tensor, nn

import monotile
from monotile.choice.chooser import Prefer
from monotile.compile import record

pytestmark = pytest.mark.gpu

MODELS = {
    "linear": (lambda: nn.Linear(392, 200), (77, 392)),
    "convolution": (lambda: nn.Conv2d(48, 72, 3, padding=1), (2, 48, 20, 20)),
    "columns": (lambda: Columns(), (130, 520)),
    "positive": (lambda: Positive(), (64, 8192)),
}


class Columns(nn.Module):
    """A right side that lies along its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(520, 136))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


class Positive(nn.Module):
    """Long sums of positive terms, of which each addition could cut off a bit."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.rand(64, 8192))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.abs(), self.w)


def error(got: Tensor, right: Tensor) -> float:
    return float((got.double() - right).norm() / right.norm())


@pytest.mark.parametrize("instruction", ["mma", "wgmma", None])
@pytest.mark.parametrize("tf32", [False, True], ids=["float32", "tf32"])
@pytest.mark.parametrize("name", MODELS)
def test_precision(name: str, tf32: bool, instruction: str | None) -> None:
    make, shape = MODELS[name]
    model, options = make().cuda().eval(), monotile.Options(tf32=tf32, cache=False)
    x = torch.randn(shape, device="cuda")
    way = Prefer("blocks", lambda v: instruction in (None, v["method"]["instruction"]))
    choices = record(model, (x,), options=options, chooser=way)
    fast = monotile.compile(model, (x,), options=options, choices=choices)
    x = torch.randn(shape, device="cuda")
    with torch.no_grad():
        eager = model(x)
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=tf32):
            rounded = model(x)
        torch.set_float32_matmul_precision("highest")
        right = model.double()(x.double())
    allowed = max(1e-6, 1.5 * error(eager, right))
    if tf32:
        allowed = max(allowed, 1.5 * error(rounded, right), 5e-4)
    assert error(fast(x), right) <= allowed
