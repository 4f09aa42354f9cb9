"""The parts of a product that tasks have on the CPU: what they read and store decides."""

import pytest

from monotile.config import Options
from monotile.kernels.matmul.method import Matmul
from monotile.pipeline import schedule
from monotile.targets.cpu.target import cpu_target
from tests.codegen.cpu_programs import linear
from tests.schedule import programs as p

TARGET = cpu_target(workers=2, vector_bytes=64)


def region(m: int, n: int, k: int) -> tuple[int, int]:
    """Rows and columns of a task."""
    plan = schedule(linear(m, n, k, right="mn"), TARGET, Options())
    steps = [x for s in p.stages(plan) for x in s.steps]
    (step,) = (x for x in steps if isinstance(x.method, Matmul))
    return step.dims[step.method.m].tile, step.dims[step.method.n].tile


@pytest.mark.parametrize(
    ("size", "rows", "columns"),
    [
        ((3136, 256, 64), 396, 256),  # an image's places, and few weights
        ((128, 3072, 768), 128, 384),  # a layer's weights are more than its tokens
        ((49, 2048, 512), 49, 256),  # no task has a few rows alone
    ],
)
def test_a_task_has_what_is_read_least(size: tuple[int, int, int], rows: int, columns: int) -> None:
    assert region(*size) == (rows, columns)
