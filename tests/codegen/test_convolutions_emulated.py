"""Convolutional networks with their channels last in memory: the kernel on the emulator against PyTorch in float64."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from monotile.choice.chooser import MODEL, Chooser
from monotile.choice.spec import Value
from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.frontends.torch.export import export
from monotile.frontends.torch.orders import in_memory_order
from monotile.frontends.torch.types import to_numpy
from monotile.ir.signature import TensorLeaf
from monotile.kernels.elementwise.method import Map
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.reduction.method import Reduce
from monotile.kernels.transpose.method import Interleave, Transpose
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Plan, Stage, Step
from monotile.plan.walk import repeats
from monotile.targets.cuda.emit import emit
from monotile.targets.cuda.target import cuda_target
from tests.codegen.emulate import COMPILER, emulate
from tests.codegen.variants import Numbered, Wherever
from tests.conftest import wide

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
TARGET = cuda_target("sm_90a")
OPTIONS = Options(workers=3)


def plan_of(model: nn.Module, x: torch.Tensor, chooser: Chooser = MODEL) -> tuple[Plan, np.ndarray]:
    """What the model became, and its result on the emulator."""
    exported = export(model, (x,))
    captured, orders = in_memory_order(capture(exported), exported)
    program, constants = transform(captured.program, captured.constants, OPTIONS, lambda *_: None)
    program, context = for_target(program, TARGET, chooser=chooser)
    plan = schedule(program, TARGET, OPTIONS, context)
    verify(plan, program, TARGET)
    (leaf,) = (x for x in captured.signature.inputs if isinstance(x, TensorLeaf))
    given = {**captured.parameters, leaf.tensor.name: x}
    values = {n: to_numpy(t.permute(orders.get(n, (*range(t.dim()),)))) for n, t in given.items()}
    values |= constants
    (found,) = emulate(program, plan, emit(program, plan, TARGET, OPTIONS), values)
    return plan, found


def check(
    model: nn.Module,
    *shape: int,
    dtype: torch.dtype = torch.float16,
    chooser: Chooser = MODEL,
) -> Plan:
    torch.manual_seed(0)
    model = model.eval().requires_grad_(False)
    for p in model.parameters():
        p.copy_(torch.randn_like(p) * (0.5 if p.dim() == 1 else p[0].numel() ** -0.5))
    x = torch.randn(*shape)
    model, x = model.to(dtype), x.to(dtype)
    plan, found = plan_of(model, x, chooser)
    right = model.double()(x.double()).numpy()
    limit = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    scale = max(1.0, float(np.abs(right).max()))
    np.testing.assert_allclose(found.astype(np.float64), right, rtol=limit, atol=limit * scale)
    return plan


def steps_of(plan: Plan) -> list[Step]:
    bodies = (plan.body, *(r.body for r in repeats(plan.body)))
    return [step for body in bodies for s in body if isinstance(s, Stage) for step in s.steps]


def methods(plan: Plan, kind: type) -> list[Any]:
    return [s.method for s in steps_of(plan) if isinstance(s.method, kind)]


def copied(plan: Plan) -> bool:
    """Whether there are products, and all of them bring in runs of channels."""
    found: list[Matmul] = methods(plan, Matmul)
    return bool(found) and all(side.vector > 1 for c in found for side in (c.left, c.right))


class Residual(nn.Module):
    """A block of ResNet's."""

    def __init__(self, channels: int, groups: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


class Squeeze(nn.Module):
    """A block of EfficientNet's: depthwise, and its channels scaled by what a pooling of the image says."""

    def __init__(self, channels: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(
            channels, channels, kernel, stride, padding=kernel // 2, groups=channels
        )
        self.down, self.up = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1)
        self.project = nn.Conv2d(channels, 24, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.silu(self.depthwise(x))
        mean = x.mean((2, 3), keepdim=True)
        return self.project(x * torch.sigmoid(self.up(nn.functional.silu(self.down(mean)))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, wide(torch.bfloat16)])
def test_a_network_of_blocks_that_roll(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), *(Residual(16) for _ in range(3)))
    plan = check(model, 1, 3, 17, 18, dtype=dtype)
    assert copied(plan)
    assert methods(plan, Transpose)
    assert list(repeats(plan.body))


@pytest.mark.parametrize(
    ("channels", "out", "kernel", "stride", "padding", "dilation", "groups"),
    [
        (8, 24, 3, 1, 1, 1, 1),
        (24, 8, 3, 2, 0, 1, 1),  # a kernel over the edge of nothing
        (16, 32, 5, 2, 3, 2, 1),
        (32, 32, 3, 1, 1, 1, 8),  # groups of four channels
        (32, 64, 3, 2, 1, 1, 2),
        (12, 20, 2, 2, 0, 1, 1),  # runs of four channels; none overlap
        (40, 40, 7, 1, 3, 1, 40),  # more behind a channel than a thread holds
        (64, 16, 1, 1, 0, 1, 1),
    ],
)
def test_kinds(
    channels: int, out: int, kernel: int, stride: int, padding: int, dilation: int, groups: int
) -> None:
    model = nn.Sequential(
        nn.Conv2d(4, channels, 1),
        nn.Conv2d(channels, out, kernel, stride, padding, dilation, groups),
        nn.ReLU(),
        nn.Conv2d(out, 8, 3, padding=1),
    )
    check(model, 2, 4, 15, 14)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (5, 2)])
def test_depthwise_and_pooling(kernel: int, stride: int) -> None:
    plan = check(nn.Sequential(nn.Conv2d(3, 64, 3, 2, 1), Squeeze(64, kernel, stride)), 1, 3, 48, 48)  # fmt: skip
    assert any(m.outputs > 1 for m in methods(plan, Reduce))


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "size", "dtype"),
    [
        (3, 1, 1, (24, 32), torch.float32), (3, 1, 1, (24, 32), torch.float16), wide(3, 1, 1, (24, 32), torch.bfloat16),
        wide(5, 1, 1, (20, 30), torch.float16), wide(5, 1, 1, (20, 30), torch.float32),
        wide(7, 1, 1, (28, 21), torch.float16), (7, 1, 1, (28, 21), torch.bfloat16),
        (3, 2, 1, (48, 48), torch.float16), (3, 1, 2, (24, 32), torch.float16), (3, 1, 1, (31, 37), torch.float16),
    ],
)  # fmt: skip
def test_windows_that_overlap(
    kernel: int, stride: int, dilation: int, size: tuple[int, int], dtype: torch.dtype
) -> None:
    """A thread has several neighbouring windows; of rows of 37 the last ones begin earlier."""
    padding = dilation * (kernel // 2)
    depthwise = nn.Conv2d(64, 64, kernel, stride, padding, dilation, groups=64)
    model = nn.Sequential(nn.Conv2d(8, 64, 1), depthwise, nn.BatchNorm2d(64), nn.SiLU(), nn.Conv2d(64, 8, 1))  # fmt: skip
    plan = check(model, 2, 8, *size, dtype=dtype)
    assert any(m.windows > 1 for m in methods(plan, Reduce))


def test_windows_within_a_task() -> None:
    """What they look at is on chip, and what follows takes their channels together."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.depthwise = nn.Conv2d(64, 64, 7, padding=3, groups=64)
            self.norm, self.wide = nn.LayerNorm(64), nn.Linear(64, 128)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.wide(self.norm(self.depthwise(x).permute(0, 2, 3, 1))))

    plan = check(nn.Sequential(nn.Conv2d(3, 64, 4, 4), Block()), 1, 3, 96, 128)
    assert any(m.windows > 1 for m in methods(plan, Reduce))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, wide(torch.bfloat16)])
def test_an_image_with_its_channels_first(dtype: torch.dtype) -> None:
    """It is copied with its channels last and one of zeros, in vectors on both sides."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1))
    plan = check(model, 2, 3, 18, 24, dtype=dtype)
    assert methods(plan, Interleave)
    plan = check(model, 2, 3, 18, 25, dtype=dtype)  # no whole vectors
    assert not methods(plan, Interleave)


def test_maps_of_many_turns() -> None:
    """Several turns ask for what they read at once, under conditions too: a concatenation, and its padding."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(8, 32, 1), nn.Conv2d(8, 16, 1)
            self.last = nn.Conv2d(96, 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = torch.relu(self.a(x)), self.b(x)
            up = nn.functional.interpolate(b[:, :, ::2, ::2], size=x.shape[2:], mode="bilinear")
            return self.last(nn.functional.pad(torch.cat([a, b, up, a * 2], 1), (1, 1, 1, 1)))

    plan = check(Net(), 1, 8, 40, 48)
    assert any(m.ahead("loop") > 1 for m in methods(plan, Map))


@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.AvgPool2d(3, 1, 1)])
def test_pooling_of_windows(pool: nn.Module) -> None:
    """-inf and zeros round the image, vectors of channels inside."""
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), pool, nn.Conv2d(32, 8, 3, padding=1))
    plan = check(model, 1, 3, 33, 30)
    assert any(m.outputs > 1 for m in methods(plan, Reduce))


def test_one_dimension() -> None:
    """Samples with an input of many channels, which is copied first."""
    model = nn.Sequential(
        nn.Conv1d(40, 32, 3, padding=1), nn.GELU(), nn.Conv1d(32, 16, 3, 2, padding=1)
    )
    assert copied(check(model, 1, 40, 75))


def test_three_dimensions() -> None:
    model = nn.Sequential(nn.Conv3d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv3d(16, 8, 3, padding=1))
    check(model, 1, 3, 5, 6, 7)


def test_transposed_and_concatenated() -> None:
    """A small U-Net."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, 1)
            self.up = nn.ConvTranspose2d(32, 16, 2, 2)
            self.last = nn.Conv2d(32, 4, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = torch.relu(self.a(x))
            b = torch.relu(self.b(a))
            return self.last(torch.cat([a, self.up(b)], 1))

    check(Net(), 1, 3, 16, 20)


def test_channels_that_lie_last_already() -> None:
    """Nothing is turned or copied first."""
    convert: Any = nn.Sequential(nn.Conv2d(16, 16, 3, 2, 1), *(Residual(16) for _ in range(3))).to
    model: nn.Module = convert(memory_format=torch.channels_last).half().eval().requires_grad_(False)  # fmt: skip
    x = torch.randn(1, 16, 17, 18).half().to(memory_format=torch.channels_last)
    plan, found = plan_of(model, x)
    assert not [s for s in steps_of(plan) if any("_by_" in n for n in s.computes)]
    right = model.double()(x.double()).numpy()
    np.testing.assert_allclose(found.astype(np.float64), right, rtol=4e-3, atol=4e-3 * float(np.abs(right).max()))  # fmt: skip


def test_a_result_keeps_its_order() -> None:
    """What the caller gets is laid out as PyTorch's, whatever lies between."""
    model = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
    assert check(model, 2, 8, 9, 11).outputs


def test_padding_meets_nan() -> None:
    """Padding is zero times the weight, so a NaN in a weight is seen at the edge as well."""
    model = nn.Conv2d(8, 8, 3, padding=1, bias=False).half().eval().requires_grad_(False)
    model.weight[2, 1, 0, 0] = float("nan")
    x = torch.randn(1, 8, 6, 5).half()
    _, found = plan_of(nn.Sequential(model, nn.ReLU()).eval(), x)
    right = torch.relu(model.float()(x.float())).numpy()
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), np.isnan(right))


def in_runs(number: int) -> Chooser:
    """Of a product in runs the way `number` is taken, whatever it costs, and wherever there is one."""

    def runs(value: Value) -> bool:
        return value["method"]["runs"] > 1

    def far(value: Value) -> float:
        return 0 if any(s["method"].get("runs", 1) > 1 for s in value["steps"]) else math.inf

    within = Numbered("blocks within rows", runs, number, Wherever(far))
    return Numbered("blocks", runs, number, within)


class Grouped(NamedTuple):
    """A convolution. part, run: channels of a group that are read, and that are made."""

    part: int
    run: int
    groups: int
    kernel: int = 3
    stride: int = 1
    dilation: int = 1


@pytest.mark.parametrize("number", [0, wide(17), 40])
@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        (Grouped(4, 4, 16), torch.float16),
        wide(Grouped(8, 8, 8, stride=2), torch.bfloat16),
        wide(Grouped(16, 16, 4, dilation=2), torch.float16),
        (Grouped(4, 12, 4), torch.float16),  # three fragments of four columns
        (Grouped(12, 8, 6, kernel=2), torch.bfloat16),  # lines that are no power of two
        (Grouped(8, 4, 4, kernel=5), torch.float16),
    ],
)
def test_groups_of_few_channels(form: Grouped, dtype: torch.dtype, number: int) -> None:
    """Several groups are one product's runs of columns."""
    part, run, groups, kernel, stride, dilation = form
    grouped = nn.Conv2d(part * groups, run * groups, kernel, stride, dilation, dilation, groups)
    after = nn.BatchNorm2d(run * groups), nn.ReLU(), nn.Conv2d(run * groups, 16, 1)
    model = nn.Sequential(nn.Conv2d(8, part * groups, 1), grouped, *after)
    plan = check(model, 2, 8, 12, 11, dtype=dtype, chooser=in_runs(number))
    assert any(c.runs > 1 for c in methods(plan, Matmul))


def test_an_infinity_stays_in_its_group() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.grouped = nn.Conv2d(8, 32, 1), nn.Conv2d(32, 32, 3, groups=8)
            self.last = nn.Conv2d(32, 32, 1, groups=8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            infinite = torch.where(torch.arange(32) == 5, torch.inf, 0.0).to(x.dtype)
            return self.last(torch.relu(self.grouped(self.first(x) + infinite[:, None, None])))

    model = Net().eval().requires_grad_(False).half()
    plan, found = plan_of(model, torch.randn(1, 8, 9, 9).half(), in_runs(0))
    assert any(c.runs > 1 for c in methods(plan, Matmul))
    assert np.isfinite(found).all(axis=(0, 2, 3)).tolist() == [not 4 <= c < 8 for c in range(32)]


class Up(nn.Module):
    """A block of U-Net's: a transposed convolution, normalised, beside what is kept, and a convolution of both."""

    def __init__(self, kernel: int, stride: int, padding: int, kept: int = 16) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(16, 16, kernel, stride, padding)
        self.norm, self.keep = nn.BatchNorm2d(16), nn.Conv2d(16, kept, 1)
        self.join = nn.Conv2d(16 + kept, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        large = nn.functional.interpolate(x, scale_factor=self.up.stride[0])
        return self.join(torch.cat([self.keep(large), torch.relu(self.norm(self.up(x)))], 1))


@pytest.mark.parametrize("geometry", [(2, 2, 0), (4, 2, 1), wide((3, 3, 0)), wide((8, 4, 2))])
def test_a_transposed_convolution_goes_by_places(geometry: tuple[int, int, int]) -> None:
    model = nn.Sequential(nn.Conv2d(64, 16, 1), nn.ConvTranspose2d(16, 32, *geometry), nn.ReLU(), nn.Conv2d(32, 8, 1))  # fmt: skip
    plan = check(model, 1, 64, 9, 7)
    (places,) = (s for s in steps_of(plan) if "conv_transpose2d_places" in s.computes)
    assert "relu" in places.computes


def test_parts_of_a_concatenation_are_copied_from_where_they_are() -> None:
    plan = check(Up(2, 2, 0), 2, 16, 6, 7)
    assert not [c for s in steps_of(plan) for c in s.computes if "padded" in c]


def test_parts_of_a_concatenation_that_are_no_vectors_are_put_together_first() -> None:
    plan = check(Up(2, 2, 0, kept=12), 2, 16, 6, 7)
    assert [c for s in steps_of(plan) for c in s.computes if "padded" in c]


class Beside(nn.Module):
    """Grouped convolutions of one tensor, as SqueezeBERT's attention has them: their weights are a table."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Conv1d(channels, channels, 1, groups=groups) for _ in range(3))  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.query(x) * self.key(x).sigmoid() + self.value(x)


@pytest.mark.parametrize("groups", [4, wide(2)])
def test_grouped_convolutions_side_by_side(groups: int) -> None:
    """Each group is a product, though the convolutions' number is an axis of the weights too."""
    methods = {type(s.method) for s in steps_of(check(Beside(256, groups), 2, 256, 96))}
    assert Matmul in methods
    assert Reduce not in methods
