"""The regions of a product that tasks have on the CPU."""

import math
from collections.abc import Iterator

from monotile.kernels.common.cost import round_up
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.matmul.panel_prefetch import LINE
from monotile.kernels.matmul.problem import Problem, Size
from monotile.targets.target import Target

LEAST_ROWS = 64  # of consecutive tasks along the rows: a panel is still in the cache then
EACH = 4  # tasks of a worker, so that its part of the right operand stays in its cache


def cpu_regions(size: Size, c: Matmul, target: Target) -> Iterator[tuple[int, int]]:
    """Candidate rows and columns of a task, with a few tasks per worker: from all rows of few columns to all columns of few rows."""
    tasks = _tasks(size, target)
    for down in range(1, tasks + 1):
        rows = round_up(-(-size.m // down), c.block_m)
        if down > 1 and rows < LEAST_ROWS:
            break
        yield rows, max(c.block_n, round_up(-(-size.n // -(-tasks // down)), c.block_n))


def cpu_region(size: Size, c: Matmul, target: Target) -> tuple[int, int]:
    """For dot products: all rows, unless there are too few columns for that."""
    tasks = _tasks(size, target)
    columns = max(c.block_n, round_up(-(-size.n // tasks), c.block_n))
    rows = round_up(-(-size.m // -(-tasks // -(-size.n // columns))), c.block_m)
    return min(max(rows, LEAST_ROWS), round_up(size.m, c.block_m)), columns


def _tasks(size: Size, target: Target) -> int:
    """For each batch."""
    least = -(-EACH * target.workers // size.batches)
    even = (
        t for t in range(least, least + target.workers) if t * size.batches % target.workers == 0
    )
    return next(even, least)


def traffic_seconds(problem: Problem, c: Matmul, tile: tuple[int, int], target: Target) -> float:
    """The part of a product's time that depends on the regions alone: first loads of a worker's tasks, and their stores.

    Consecutive tasks have the same rows. A worker counts as having every n-th of them: columns of some of these, and rows of all. (It
    has neighbours; counted so, ResNet-50 is 2 % slower.) It reads again what does not stay in its cache.
    """
    if c.instruction != "outer":
        return 0.0
    size, workers = problem.size, target.workers
    down, across = -(-size.m // tile[0]), -(-size.n // tile[1])
    own = max(1.0, down * across / workers)  # tasks of a batch
    columns, rows = min(own, across / math.gcd(across, workers)), min(own, down)
    left, right = problem.read.left / down, problem.read.right / across  # of a task
    kept = target.shared_bytes / 2
    read = right * columns * (rows if right * columns > kept else 1)
    read += left * rows * (columns if left > kept else 1)
    batches = size.batches * down * across / workers / own
    row = tile[1] * problem.stored
    stored = (
        tile[0] * (-(-row // LINE) + 1) * LINE * own
    )  # a line more where a row begins inside one
    return batches * (read + stored) * workers / target.dram_bandwidth
