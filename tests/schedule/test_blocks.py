"""Of a product's blocks only those are timed that may be the fastest, and the fastest is found all the same."""

import pytest

from monotile.choice.chooser import MODEL, Record
from monotile.ir.dtype import DType
from monotile.kernels.common.cost import ROUNDING
from monotile.kernels.common.product import product
from monotile.kernels.draft import Context, Draft
from monotile.kernels.group import single
from monotile.kernels.matmul.blocks import blocks, ways
from monotile.kernels.matmul.cost import block, rounds_seconds
from monotile.kernels.matmul.problem import Memory, Problem, Size
from monotile.schedule.tiles import cut
from monotile.targets.cuda.target import cuda_target
from monotile.targets.target import Target
from tests.schedule import programs as p

TARGETS = [cuda_target(name) for name in ("sm_80", "sm_90a")]
SIZES = [(128, 768, 768), (8, 4096, 1024), (1000, 24, 40), (4096, 3072, 384)]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [DType.F16, DType.F32])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_the_fastest_block_is_found_among_fewer(
    target: Target, size: tuple[int, int, int], dtype: DType, turned: bool
) -> None:
    m, n, k = size
    a = p.tensor("a", m, k, dtype=dtype)
    b = p.tensor("b", *((n, k) if turned else (k, n)), dtype=dtype)
    c = p.matmul("c", a, b, turned=turned)

    def fastest(chooser: Record | None) -> Draft | None:
        return cut(single(c), Context({}, target, chooser=chooser or MODEL))

    found = fastest(None)
    assert found is not None
    assert found == fastest(Record())  # which wants to see every way


@pytest.mark.parametrize("dtype", [DType.F16, DType.F32])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_no_way_is_faster_than_the_least_of_its_block(
    target: Target, size: tuple[int, int, int], dtype: DType
) -> None:
    m, n, k = size
    a, b = p.tensor("a", m, k, dtype=dtype), p.tensor("b", n, k, dtype=dtype)
    c = product(p.matmul("c", a, b, turned=True), {}, target)
    assert c is not None
    problem = Problem(c, Size(m, n, k), 0.0, 4, Memory(0, 0))
    for method in blocks(c, problem.size, target):
        timed = block(method, c, k, target)
        for rounds in range(method.teams, 7):
            for task in (Size(8, 8, k), Size(method.block_m, method.block_n, k)):
                seconds = rounds_seconds(timed, method, problem, task, rounds, 0.0)
                assert timed.floor.least(rounds) <= seconds * ROUNDING


def test_ways_of_equal_blocks_are_shared() -> None:
    """By products of other sizes that sum as many values; not by those that sum others, which have other seconds."""
    target = TARGETS[1]
    a, b = p.tensor("a", 512, 768), p.tensor("b", 768, 768)
    c = product(p.matmul("c", a, b, turned=True), {}, target)
    assert c is not None
    context = Context({}, target)
    large, small, deep = (ways(c, Size(*n), context) for n in ((512, 768, 768), (64, 768, 768), (64, 768, 3072)))  # fmt: skip
    for size, found in (((512, 768, 768), large), ((64, 768, 768), small), ((64, 768, 3072), deep)):
        assert [w.method for w in found] == list(blocks(c, Size(*size), target))
        assert [w.block for w in found] == [block(w.method, c, size[2], target) for w in found]
    kept = {id(w) for w in large}
    assert {id(w) for w in small} <= kept
    assert not {id(w) for w in deep} & kept
