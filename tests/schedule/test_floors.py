"""The least that stages take: bytes, operations, hand-offs."""

import pytest

from monotile.ir.dtype import DType
from monotile.plan.floors import floors
from tests.schedule import programs as p

M, N, K = 128, 4096, 1024


def test_a_product_moves_each_byte_once() -> None:
    a, b = p.tensor("a", M, K, dtype=DType.F16), p.tensor("b", K, N, dtype=DType.F16)
    product = p.matmul("y", a, b)
    program = p.program([a, b], [product], product.out)
    (found,) = floors(p.plan_of(program, p.H100), program, p.H100)
    assert found.operations == 2 * M * N * K
    assert found.computing == pytest.approx(found.operations / p.H100.flops["mma16"])
    assert found.memory + found.cache == 2 * (M * K + K * N + M * N)
    assert found.waiting == 0.0
    assert found.seconds == max(found.moving, found.computing)


def test_what_stays_on_chip_is_not_moved_and_hand_offs_count() -> None:
    a, b = p.tensor("a", M, K), p.tensor("b", K, N)
    product = p.matmul("y", a, b)
    after = p.pointwise("z", product.out)
    program = p.program([a, b], [product, after], after.out)
    plan = p.plan_of(program, p.H100)
    found = floors(plan, program, p.H100)
    assert len(found) == len(p.stages(plan))
    waits = sum(s.handoff == "grid" for s in p.stages(plan))
    assert sum(f.waiting for f in found) == pytest.approx(waits * p.H100.barrier_seconds)
    if len(found) == 1:
        assert found[0].memory + found[0].cache == 4 * (M * K + K * N + M * N)
