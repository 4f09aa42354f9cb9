"""Questions about a whole tensor that are answered where it is made, on the emulator."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import monotile
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.rowwise.method import HoldRows
from monotile.plan.nodes import Plan, Step
from tests.codegen.emulate import COMPILER
from tests.codegen.test_convolutions_emulated import plan_of, steps_of

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
LAYERS, FEATURES = 3, 128
QUESTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "any": lambda x: torch.isinf(x).any(),
    "all": lambda x: torch.isfinite(x).all().logical_not(),
    "each": lambda x: torch.isinf(x).flatten(1).any(1)[:, None, None],
}


class Clamped(nn.Module):
    """Layers whose sums are clamped where anything of them is infinite, as T5's are in float16."""

    def __init__(self, question: str, normalised: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(LAYERS))
        for p in self.parameters():
            p.data.copy_(0.05 * torch.randn_like(p))
        self.asks = QUESTIONS[question]
        self.normalised = normalised

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
            x = torch.where(self.asks(x), x.clamp(-4, 4), x)
            if self.normalised:
                x = nn.functional.layer_norm(x, (FEATURES,))
        return x


def compare(model: nn.Module, x: Tensor) -> Plan:
    model = model.eval().requires_grad_(False).to(x.dtype)
    plan, found = plan_of(model, x)
    right = model(x).double().numpy()
    np.testing.assert_allclose(found.astype(np.float64), right, rtol=4e-3, atol=0.05)
    return plan


def answered(plan: Plan) -> list[Step]:
    """Steps with a question behind what they make."""
    return [s for s in steps_of(plan) if len(s.computes) > 1 and s.computes[-1].endswith("_found")]


def batches(value: float, *where: int) -> Tensor:
    torch.manual_seed(1)
    x = torch.randn(2, 96, FEATURES)
    x[where] = value
    return x.half()


@pytest.mark.parametrize("normalised", [False, True], ids=["plain", "normalised"])
@pytest.mark.parametrize("value", [1.0, 65000.0], ids=["finite", "overflows"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_product_answers(question: str, value: float, normalised: bool) -> None:
    """65000 and what the layer adds is infinite in float16 and not in float32; clamped, no later layer's sum is: each iteration begins
    anew."""
    model = Clamped(question, normalised)
    x = batches(value, 1, 17, 5)
    model.layers[0].weight.data[5, 5] = 0.05
    plan = compare(model, x)
    (step,) = answered(plan)
    assert isinstance(step.method, Matmul)
    assert not [s for s in steps_of(plan) if any(n.endswith("_parts") for n in s.computes)]
    assert any(isinstance(s.method, HoldRows) for s in steps_of(plan)) == normalised


@pytest.mark.parametrize("value", [0.5, 9.0])
def test_a_map_answers(value: float) -> None:
    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.sin(x) + x
            return torch.where((y > 8).any(), -y, y)

    compare(Doubled(), batches(value, 0, 3, 3).float())


class Overflowing(nn.Module):
    """Which sums are infinite in float16, and whether any is, beside the sums or alone."""

    def __init__(self, whole: bool, beside: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, FEATURES)
        self.layer.weight.data.mul_(0.05)
        self.layer.weight.data[5, 5] = 0.05
        self.whole, self.beside = whole, beside

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x) + x
        found = torch.isinf(y)
        found = found.any() if self.whole else found
        return torch.where(found, -1.0, y if self.beside else 2.0)


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cpu"])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside"])
@pytest.mark.parametrize("whole", [False, True], ids=["each", "any"])
def test_what_rounds_to_infinity_is_infinite(whole: bool, beside: bool, target: str) -> None:
    torch.manual_seed(0)
    model, x = Overflowing(whole, beside), batches(65000.0, 1, 17, 5)
    if target != "cpu":
        compare(model, x)
        return
    model = model.half().eval().requires_grad_(False)
    fast = monotile.compile(model, (x,), target=target)
    torch.testing.assert_close(fast(x), model(x), atol=0.05, rtol=4e-3)


def attended(x: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(x, x, x)


MAKERS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "attention": (attended, (1, 4, 64, 64)),
    "normalisation": (lambda x: nn.functional.layer_norm(x, (64,)), (1, 4, 64, 64)),
    "sums": (lambda x: x.sum(-1), (1, 96, 96, 64)),
    "window": (lambda x: nn.functional.max_pool2d(x, 3, 1, 1), (1, 16, 32, 32)),
    "convolution": (lambda x: nn.functional.conv2d(x, x[:, :, :3, :3], padding=1), (16, 16, 32, 32)),
    "odd rows": (lambda x: x @ x.mT, (1, 1, 101, 64)),
    "transposed": (lambda x: x.mT.contiguous() + 1, (1, 4, 64, 64)),
}  # fmt: skip


@pytest.mark.parametrize("limit", [0.0, 1e4], ids=["some", "none"])
@pytest.mark.parametrize("name", MAKERS)
def test_whoever_makes_it_answers(name: str, limit: float) -> None:
    make, shape = MAKERS[name]

    class Asked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = make(x)
            return torch.where((y > limit).any(), -y, y)

    torch.manual_seed(0)
    compare(Asked(), torch.randn(shape).half())
