"""Products of warpgroups whose left operand lies along its rows, on the emulator against PyTorch."""

import pytest
import torch
from torch import Tensor, nn

import monotile
from monotile.choice.spec import Value
from monotile.kernels.matmul.method import Matmul
from monotile.plan.walk import stages_in
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.codegen.variants import product_by
from tests.models.accuracy import error, exact

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")


def _by_warpgroups(method: Value) -> bool:
    match method:
        case {"instruction": "wgmma", "left": {"major": "mn"}}:
            return True
        case _:
            return False


class Transposed(nn.Module):
    """x.T times a weight, which lies along k or along its columns."""

    def __init__(self, k: int, n: int, *, along_k: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        weight = torch.randn(n, k) if along_k else torch.randn(k, n)
        self.along_k, self.weight = along_k, nn.Parameter(weight.half() / k**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x.T @ (self.weight.T if self.along_k else self.weight))


def check(model: nn.Module, x: Tensor, number: int) -> None:
    model = model.eval().requires_grad_(False)
    fast = Emulated(model, (x,), chooser=product_by(_by_warpgroups, number))
    methods = [s.method for stage in stages_in(fast.plan.body) for s in stage.steps]
    assert any(isinstance(m, Matmul) and m.left.major == "mn" for m in methods)
    right = exact(model, (x,))
    assert error(fast(x, seed=number)[0], right) <= 1.5 * error(model(x), right)


@pytest.mark.parametrize("along_k", [True, False])
@pytest.mark.parametrize("number", range(0, 40, 5))
def test_blocks(number: int, along_k: bool) -> None:
    """Rows and values of k that do not fill a block."""
    check(Transposed(200, 72, along_k=along_k), torch.randn(200, 136, dtype=torch.float16), number)


@pytest.mark.parametrize("rows", [136, 264])
def test_gathered_lines(rows: int) -> None:
    """Of a weight of which 64 columns have the same few of each 32 values along k."""
    torch.manual_seed(0)
    model = monotile.pack(nn.Sequential(nn.Linear(512, 192)).half(), "8:32x64", inplace=True)
    check(model, torch.randn(rows, 512, dtype=torch.float16), 0)
