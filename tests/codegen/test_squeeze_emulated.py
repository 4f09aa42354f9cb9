"""Small products of what a stage has just made: their weights are asked for before it is there."""

import pytest
import torch
from torch import Tensor, nn

from monotile.kernels.reduction.method import Reduce
from monotile.plan.nodes import Plan, Stage
from tests.codegen.emulate import COMPILER
from tests.codegen.test_convolutions_emulated import check

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")


class Squeeze(nn.Module):
    """Channels scaled by what two products make of their means."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.reduce = nn.Linear(channels, squeezed)
        self.expand = nn.Linear(squeezed, channels)

    def forward(self, x: Tensor) -> Tensor:
        inner = nn.functional.silu(self.reduce(x.mean((2, 3))))
        return x * torch.sigmoid(self.expand(inner))[:, :, None, None]


def early(plan: Plan) -> list[tuple[Stage, Reduce]]:
    return [
        (s, step.method)
        for s in plan.body
        if isinstance(s, Stage)
        for step in s.steps
        if isinstance(step.method, Reduce) and step.method.ahead("stage")
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("batch", "channels", "squeezed"), [(1, 64, 8), (2, 144, 6), (2, 96, 20)])
def test_weights_are_asked_for_early(
    batch: int, channels: int, squeezed: int, dtype: torch.dtype
) -> None:
    found = early(check(Squeeze(channels, squeezed), batch, channels, 8, 8, dtype=dtype))
    assert len(found) == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("outputs", [16, 23])
def test_before_the_hand_off(outputs: int, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, outputs), nn.Sigmoid())
    ((stage, _),) = early(check(model, 1, 512, dtype=dtype))
    assert stage.handoff == "grid"
    assert stage.late


def test_weights_of_several_turns() -> None:
    assert early(check(Squeeze(672, 28), 1, 672, 4, 4))


def test_more_than_registers_hold_is_read_when_it_is_needed() -> None:
    plan = check(Squeeze(2048, 160), 1, 2048, 2, 2)
    assert all(len(stage.steps) == 1 for stage, _ in early(plan))
