"""What one thread has: of rows, of windows, of short sums."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from monotile.config import Options
from monotile.frontends.torch.capture import capture
from monotile.kernels.reduction.method import Reduce
from monotile.kernels.rowwise.method import HoldRows
from monotile.pipeline import for_target, schedule, transform
from monotile.plan.nodes import Method
from monotile.plan.walk import stages_in
from tests.schedule.programs import H100


def methods(model: nn.Module, x: Tensor) -> list[Method]:
    found = capture(model.eval().requires_grad_(False), (x,))
    program, _ = transform(found.program, found.constants, Options())
    program, context = for_target(program, H100)
    plan = schedule(program, H100, Options(), context)
    return [step.method for stage in stages_in(plan.body) for step in stage.steps]


def test_lanes_share_rows_whose_columns_are_no_vectors() -> None:
    """One lane a row would touch a line for each: 32 a request."""

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.normalize(x.view(64, 64, 6, 30).transpose(1, 2), dim=-1).contiguous()

    found = methods(Model(), torch.randn(64, 64, 180).half())
    (rows,) = (m for m in found if isinstance(m, HoldRows))
    assert rows.lanes > 1


def test_short_sums_of_many_outputs_are_a_threads_own() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.conv1d(F.pad(x, (4, 4), "reflect"), torch.ones(1, 1, 9, dtype=x.dtype))

    found = methods(Model(), torch.randn(1, 1, 70000).half())
    (own,) = (m for m in found if isinstance(m, Reduce))
    assert own.lanes == 1


def test_a_thread_asks_for_several_rows_of_a_window_at_once() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(384, 384)
            self.conv = nn.Conv2d(384, 384, 7, padding=3, groups=384)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(self.linear(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    found = methods(Model().half(), torch.randn(1, 14, 14, 384).half())
    (own,) = (m for m in found if isinstance(m, Reduce))
    assert own.outputs > 1
    assert own.unrolled[0] > 1
