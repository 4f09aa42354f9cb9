"""One token through layers with states, as Mamba 2's: they are a loop, whose stages update the states where they read them."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from monotile.ir.program import Scatter, statements
from monotile.plan.nodes import Repeat, Stage
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import Emulated
from tests.codegen.test_gemv_emulated import SMALL

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
WIDE, HEADS, INNER, STATE = 256, 8, 16, 128
PLAIN = HEADS * INNER


class Layer(nn.Module):
    """A short convolution over past inputs, then a state that decays and is read; before the first token both count as zero."""

    conv_state: Tensor
    state: Tensor

    def __init__(self) -> None:
        super().__init__()
        channels = PLAIN + 2 * STATE
        self.norm = nn.RMSNorm(WIDE)
        self.inside = nn.Linear(WIDE, PLAIN + channels + HEADS, bias=False)
        self.weight, self.bias = nn.Parameter(torch.randn(channels, 4)), nn.Parameter(torch.randn(channels))  # fmt: skip
        self.decay = nn.Parameter(torch.rand(HEADS))
        self.outside = nn.Linear(PLAIN, WIDE, bias=False)
        self.register_buffer("conv_state", torch.randn(1, channels, 4))
        self.register_buffer("state", torch.randn(1, HEADS, INNER, STATE))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        gate, mixed, step = self.inside(self.norm(x)).split([PLAIN, PLAIN + 2 * STATE, HEADS], -1)
        past = torch.where(at <= 0, 0.0, self.conv_state)
        now = torch.cat([past[..., 1:], mixed[..., None]], -1)
        self.conv_state.copy_(now)
        mixed = F.silu((now * self.weight).sum(-1) + self.bias)
        value, key, query = mixed.split([PLAIN, STATE, STATE], -1)
        step = F.softplus(step)[..., None, None]
        old = torch.where(at <= 0, 0.0, self.state)
        new = old * torch.exp(-step * self.decay[:, None, None])
        new = new + step * value.view(1, HEADS, INNER, 1) * key[:, None, None]
        self.state.copy_(new)
        read = (new @ query.view(1, 1, STATE, 1)).view(1, PLAIN)
        return x + self.outside(read * F.silu(gate))


class Layers(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(count))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, at)
        return x


@pytest.fixture(scope="module")
def both() -> tuple[Layers, Emulated]:
    torch.manual_seed(0)
    model = Layers(5).eval()
    return model, Emulated(model, (torch.randn(1, WIDE), torch.tensor(3)), 16, target=SMALL)


def test_results_and_states(both: tuple[Layers, Emulated]) -> None:
    model, fast = both
    for seed, place in enumerate([3, 0]):
        exact = copy.deepcopy(model).double()
        x = torch.randn(1, WIDE)
        right = exact(x.double(), torch.tensor(place))
        (found,) = fast(x, torch.tensor(place), seed=seed)
        torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-4)
        held = {n: torch.from_numpy(v).double() for n, v in fast.states.items()}
        wanted = {n.replace(".", "_"): b for n, b in exact.named_buffers()}
        assert held
        total = sum(v.sum() for v in held.values())
        torch.testing.assert_close(total, sum(b.sum() for b in wanted.values()), rtol=1e-4, atol=1e-2)  # fmt: skip


def test_layers_are_a_loop_that_updates_in_place(both: tuple[Layers, Emulated]) -> None:
    _, fast = both
    (loop,) = [n for n in fast.plan.body if isinstance(n, Repeat)]
    assert loop.extent >= 4
    updated = {s.out.name for s in statements(fast.program.body) if isinstance(s, Scatter)}
    places = fast.plan.places
    (update,) = [n for n in updated if places[n] == places["b_layers_0_state_all"]]
    (stage,) = [n for n in loop.body if isinstance(n, Stage) and update in computes_of(n)]
    assert len(stage.steps) > 1
    made = stage.steps[[update in s.computes for s in stage.steps].index(True) - 1]
    # The state is asked for beside the weights before, and then loaded before the stage's first step.
    assert made.method.ahead("ring", "large")
    assert made.method.ahead("stage")


def computes_of(stage: Stage) -> set[str]:
    return {name for step in stage.steps for name in step.computes}
