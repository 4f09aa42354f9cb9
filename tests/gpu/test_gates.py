"""Gated linear units whose products are side by side in a step, beside float64 and PyTorch."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import monotile
from monotile.choice.chooser import Prefer
from monotile.choice.spec import Value
from monotile.compile import record
from monotile.kernels.matmul.method import MatmulGate
from monotile.plan.walk import stages_in
from tests.codegen.test_gates_emulated import Columns, Halves, Layers, Siblings
from tests.models.accuracy import error, exact

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk"),
]

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "llama": (lambda: Siblings(2048, 8192), (128, 2048)),
    "many-rows": (lambda: Siblings(1152, 3072), (2304, 1152)),
    "geglu": (lambda: Halves(320, 1280), (2, 1024, 320)),
    "masked": (lambda: Halves(392, 1000), (197, 392)),
    "three": (lambda: Halves(512, 384, 3), (300, 512)),
    "columns": (lambda: Columns(512, 768), (300, 512)),
    "layers": (lambda: Layers(Halves, 512, 1024), (200, 512)),
    "recurrence": (lambda: nn.GRU(512, 512), (20, 64, 512)),
}

WARPS_ALONE = ("columns", "recurrence")  # in float32


@pytest.mark.parametrize("instruction", ["mma", "wgmma", None])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", MODELS)
def test_precision(name: str, dtype: torch.dtype, instruction: str | None) -> None:
    if instruction == "wgmma" and dtype is torch.float32 and name in WARPS_ALONE:
        pytest.skip("its operands, or its few rows, are not for warpgroups")
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = make().cuda().to(dtype).eval()
    x = torch.randn(shape, device="cuda").to(dtype)

    def holds(value: Value) -> bool:
        return instruction in (None, value["method"]["instruction"])

    options = monotile.Options(cache=False)
    way = Prefer("match", bool, Prefer("blocks", holds))
    choices = record(model, (x,), options=options, chooser=way)
    fast = monotile.compile(model, (x,), options=options, choices=choices)
    methods = [s.method for stage in stages_in(fast.plan.body) for s in stage.steps]
    found = [m.instruction for m in methods if isinstance(m, MatmulGate)]
    assert found
    assert instruction is None or set(found) == {instruction}
    right = exact(model, (x,))
    with torch.no_grad():
        theirs = error(model(x), right)
        limit = max(1.5 * theirs, 3e-6 if dtype is torch.float32 else 0.0)
        for _ in range(3):
            assert error(fast(x), right) <= limit
