"""Copies that a network begins with: as many tasks as workers, if they can be."""

from monotile.kernels.elementwise.method import Map
from monotile.kernels.transpose.method import Transpose
from monotile.plan.nodes import Dim, Stage, Step
from monotile.schedule.spread import spread
from monotile.targets.cuda.target import cuda_target

TARGET = cuda_target("sm_90a", workers=16)


def copy(name: str, channels: int, behind: int = 9) -> Stage:
    tile = min(channels, 8 * TARGET.threads)
    dims = (Dim((0, 2), channels, tile, 0), Dim((1,), behind, behind, None))
    return Stage(name, (-(-channels // tile),), (Step((name,), dims, Transpose(8, 1)),), "none", 0)


def other(name: str) -> Stage:
    return Stage(name, (16,), (Step((name,), (Dim((0,), 99, 7, 0),), Map(1)),), "none", 0)


def cut(*stages: Stage) -> list[tuple[int, int]]:
    """The tasks of each stage, and the tile of its first dim."""
    done = [s for s in spread(stages, TARGET) if isinstance(s, Stage)]
    assert [s.name for s in done] == [s.name for s in stages]
    return [(s.grid[0], s.steps[0].dims[0].tile) for s in done]


def test_few_copies_are_cut_down_to_a_warp() -> None:
    assert cut(copy("a", 96), copy("b", 2400)) == [(1, 96), (10, 256)]


def test_copies_that_would_be_more_than_the_workers_are_cut_less() -> None:
    assert cut(copy("a", 2400), copy("b", 2400)) == [(5, 512), (5, 512)]
    assert cut(copy("a", 40000)) == [(20, 2048)]


def test_only_what_comes_first_is_cut() -> None:
    assert cut(other("x"), copy("a", 2400)) == [(16, 7), (2, 2048)]
    assert cut(copy("a", 2400), other("x"), copy("b", 2400)) == [(10, 256), (16, 7), (2, 2048)]
