"""Windows of depthwise convolutions on the CPU: sums of several places in registers, and of single ones at the borders."""

import pytest
import torch
from torch import Tensor as Tensors
from torch import nn

from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.ir.evaluate import evaluate
from monotile.kernels.reduction.method import AlongOutputs, Reduce
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan
from monotile.targets.cpu.target import cpu_target
from tests.codegen.cpu_run import Compiled
from tests.codegen.test_cpu import agree
from tests.codegen.test_cpu_methods import methods
from tests.codegen.test_cpu_words import array

VECTORS = [64, 32, 16]


def checked(model: nn.Module, x: Tensors, vector: int) -> Plan:
    """The Plan, compiled and compared with the Program."""
    target = cpu_target(workers=2, vector_bytes=vector)
    found = capture(model.eval(), (x,))
    program, constants = transform(found.program, found.constants, Options())
    program, context = for_target(program, target)
    plan = schedule(program, target, Options(), context)
    verify(plan, program, target)
    values = {n: array(p) for n, p in found.parameters.items()} | dict(constants)
    values[program.inputs[0].name] = array(x)
    agree(Compiled(program, plan=plan, target=target)(values), evaluate(program, values))
    return plan


def in_registers(plan: Plan) -> bool:
    sums = (m.simd for m in methods(plan) if isinstance(m, Reduce))
    return any(isinstance(x, AlongOutputs) and x.windows for x in sums)


def depthwise(
    channels: int, kernel: int, stride: int = 1, padding: int = -1, dilation: int = 1
) -> nn.Module:
    padding = dilation * (kernel // 2) if padding < 0 else padding
    window = nn.Conv2d(channels, channels, kernel, stride, padding, dilation, groups=channels)
    return nn.Sequential(
        nn.Conv2d(4, channels, 1), nn.ReLU(), window, nn.SiLU(), nn.Conv2d(channels, 8, 1)
    )


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize(
    ("channels", "size", "kernel", "stride", "padding", "dilation"),
    [
        (48, (9, 20), 3, 1, -1, 1), (24, (7, 7), 3, 1, -1, 1), (40, (12, 13), 5, 1, -1, 1), (32, (11, 15), 7, 1, -1, 1), (72, (13, 18), 3, 2, -1, 1),
        (40, (8, 9), 3, 1, 0, 1), (16, (10, 12), 3, 1, 2, 1), (48, (10, 12), 3, 1, -1, 2), (600, (5, 5), 3, 1, -1, 1), (48, (3, 3), 5, 1, -1, 1),
    ],
)  # fmt: skip
def test_depthwise(
    channels: int, size: tuple[int, int], kernel: int, stride: int, padding: int, dilation: int, vector: int
) -> None:  # fmt: skip
    torch.manual_seed(0)
    model = depthwise(channels, kernel, stride, padding, dilation)
    assert in_registers(checked(model, torch.randn(2, 4, *size), vector))


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types(dtype: torch.dtype, vector: int) -> None:
    torch.manual_seed(0)
    plan = checked(depthwise(48, 3).to(dtype), torch.randn(1, 4, 9, 14).to(dtype), vector)
    assert in_registers(plan)


def test_one_dimension() -> None:
    torch.manual_seed(0)
    window = nn.Conv1d(48, 48, 5, padding=4, dilation=2, groups=48)
    model = nn.Sequential(nn.Conv1d(4, 48, 1), nn.ReLU(), window, nn.SiLU(), nn.Conv1d(48, 8, 1))
    assert in_registers(checked(model, torch.randn(2, 4, 37), 64))


def test_other_reductions_are_none() -> None:
    """Maxima over windows, and windows of all channels."""
    torch.manual_seed(0)
    most = nn.Sequential(nn.Conv2d(4, 48, 1), nn.MaxPool2d(3, 1, 1), nn.Conv2d(48, 8, 3, padding=1))
    assert not in_registers(checked(most, torch.randn(1, 4, 9, 12), 64))
