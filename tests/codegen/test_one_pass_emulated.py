"""Sums and the squares around their means in one pass, on the emulator."""

import math

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from monotile.errors import VerificationError
from monotile.kernels.reduction.method import Reduce, ReduceMoments
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan, Step
from monotile.plan.walk import each_stage, stages_in
from tests.codegen.emulate import COMPILER
from tests.codegen.emulate_model import TARGET, Emulated

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")


class Normed(nn.Module):
    """A normalisation of an image over groups of its channels, which a convolution has made with its channels last."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.conv = nn.Conv2d(8, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(self.conv(x), self.groups)


class Moments(nn.Module):
    """Of everything but the last axis, and of everything but the first."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        across = torch.var_mean(x, (0, 1), correction=0)
        along = torch.var_mean(x, (1, 2), correction=0)
        return (*across, *along)


def found_together(plan: Plan) -> list[ReduceMoments]:
    every = (step.method for stage in stages_in(plan.body) for step in stage.steps)
    return [m for m in every if isinstance(m, ReduceMoments)]


@pytest.mark.parametrize(
    ("channels", "groups", "size"), [(64, 8, 24), (128, 32, 40), (256, 4, 9), (16, 16, 20)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_groups_of_channels(channels: int, groups: int, size: int, dtype: torch.dtype) -> None:
    model = Normed(channels, groups).eval().requires_grad_(False)
    x = torch.randn(2, 8, size, size)
    args = (x.to(dtype).to(memory_format=torch.channels_last),)
    fast = Emulated(model.to(dtype), args)
    assert found_together(fast.plan)
    for seed in range(2):
        (y,) = fast(*args, seed=seed)
        right = model.double()(args[0].double())
        error = (y.double() - right).abs().max()
        assert error < (2e-5 if dtype is torch.float32 else 1e-2)
        model.to(dtype)


@pytest.mark.parametrize("shape", [(300, 40, 24), (7, 33, 130), (2, 500, 64)])
def test_of_a_mean_far_from_zero(shape: tuple[int, ...]) -> None:
    """Sums of squares would lose it: of mean 300 and variance 1 they would be wrong by 0.005."""
    x = torch.randn(shape) + 300
    fast = Emulated(Moments(), (x,))
    assert found_together(fast.plan)
    for y, right in zip(fast(x), Moments()(x.double()), strict=True):
        torch.testing.assert_close(y.double(), right, rtol=1e-4, atol=1e-4)


def test_infinite_terms_have_an_infinite_mean() -> None:
    """As in two passes; what is normalised by it is NaN in either case."""
    x = torch.randn(300, 40, 24)
    x[5, 3, 2] = math.inf
    fast = Emulated(Moments(), (x,))
    assert found_together(fast.plan)
    variance, mean, *_ = fast(x)
    assert mean[2] == math.inf
    assert variance.isnan().nonzero().tolist() == [[2]]


def changed(plan: Plan, **fields: object) -> Plan:
    def go(step: Step) -> Step:
        if not isinstance(step.method, ReduceMoments):
            return step
        return msgspec.structs.replace(step, method=msgspec.structs.replace(step.method, **fields))

    body = each_stage(
        plan.body, lambda s: msgspec.structs.replace(s, steps=tuple(map(go, s.steps)))
    )
    return msgspec.structs.replace(plan, body=body)


def test_a_plan_with_other_squares_is_refused() -> None:
    fast = Emulated(Moments(), (torch.randn(300, 40, 24),))
    (first, *_) = (
        s.computes
        for g in stages_in(fast.plan.body)
        for s in g.steps
        if isinstance(s.method, Reduce)
    )
    verify(fast.plan, fast.program, TARGET)
    for squares in ("nothing", first[0]):
        with pytest.raises(VerificationError, match="in one pass"):
            verify(changed(fast.plan, squares=squares), fast.program, TARGET)
