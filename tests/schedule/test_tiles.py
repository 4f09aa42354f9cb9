"""Tiles cover their stages and fit the hardware."""

import math

import pytest

from monotile.ir.dtype import DType
from monotile.ir.program import Program
from monotile.kernels.elementwise.method import Map
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.reduction.method import Reduce
from monotile.kernels.rowwise.method import HoldRows
from monotile.kernels.scatter.method import Listed, Serial
from monotile.plan.check.structure import verify
from monotile.plan.nodes import Stage
from monotile.plan.places import Register, Shared
from monotile.targets.cuda.target import cuda_target
from monotile.targets.target import Target
from tests.schedule import programs as p

CASES = {
    "mlp": p.mlp(),
    "mlp16": p.mlp(dtype=DType.F16),
    "odd": p.mlp(7, 13),
    "recurrence": p.recurrence(),
    "update": p.update(),
    "wide": p.program([p.tensor("x", 3, 5000)], p.softmax(p.tensor("x", 3, 5000)), p.tensor("y", 3, 5000)),
    "single": p.program([p.tensor("x")], [p.pointwise("y", p.tensor("x"))], p.tensor("y")),
    "empty": p.program([p.tensor("x", 0, 4)], [p.pointwise("y", p.tensor("x", 0, 4))], p.tensor("y", 0, 4)),
}  # fmt: skip
SMALL = cuda_target("sm_86", workers=2)


@pytest.mark.parametrize("target", [*p.TARGETS, SMALL], ids=lambda t: t.name)
@pytest.mark.parametrize("name", CASES)
def test_every_tile_is_computed_once_and_fits(name: str, target: Target) -> None:
    program: Program = CASES[name]
    plan = p.plan_of(program, target)
    verify(plan, program, target)
    assert plan.launch.shared_bytes <= target.shared_bytes
    for stage in p.stages(plan):
        for step in stage.steps:
            for d in step.dims:
                tiles = 1 if d.stage is None else stage.grid[d.stage]
                assert tiles * d.tile >= d.extent
                assert d.stage is None or (tiles - 1) * d.tile < max(d.extent, d.tile)
            assert step.scratch % 128 == 0
            assert step.scratch + step.scratch_bytes <= plan.launch.shared_bytes
            match step.method:
                case Map(vector) | Reduce(_, vector):
                    assert vector & (vector - 1) == 0
                    assert vector <= target.vector_bytes
                case Matmul():
                    assert {step.method.m, step.method.n} <= set(range(len(step.dims)))
                case Serial():
                    pass


def _stage(program: Program, target: Target, tensor: str) -> Stage:
    plan = p.plan_of(program, target)
    return next(s for s in p.stages(plan) for step in s.steps if tensor in step.computes)


def test_softmax_holds_short_rows_in_registers() -> None:
    x = p.tensor("x", 256, 64)
    program = p.program([x], p.softmax(x), p.tensor("y", 256, 64))
    plan = p.plan_of(program, p.H100)
    ((step,),) = (stage.steps for stage in p.stages(plan))
    assert isinstance(step.method, HoldRows)
    assert step.method.lanes * step.method.vector >= 64
    assert plan.places["powers"] == (Register(),)


def test_softmax_takes_many_rows_in_rounds() -> None:
    x = p.tensor("x", 4096, 512)
    program = p.program([x], p.softmax(x), p.tensor("y", 4096, 512))
    ((step,),) = (stage.steps for stage in p.stages(p.plan_of(program, p.H100)))
    assert isinstance(step.method, HoldRows)
    assert step.dims[0].tile > p.H100.threads // step.method.lanes


def test_softmax_holds_long_rows_on_chip() -> None:
    x = p.tensor("x", 256, 16384)
    program = p.program([x], p.softmax(x), p.tensor("y", 256, 16384))
    plan = p.plan_of(program, p.H100)
    (stage,) = p.stages(plan)
    assert math.prod(stage.grid) > 1
    (found, *_) = plan.places["powers"]
    assert isinstance(found, Shared)
    assert found.box[0].stage == 0
    assert found.box[0].tile < 256


def test_writes_that_never_meet_are_spread_over_threads() -> None:
    (step,) = _stage(p.strided(), p.H100, "new").steps
    assert step.method == Map()


def test_few_writes_that_may_meet_are_in_order_where_they_do() -> None:
    program = p.update(width=512, count=8)
    (step,) = _stage(program, p.H100, "new").steps
    assert isinstance(step.method, Serial)
    assert step.method.parallel == (1,)
    assert step.method.ahead("loop") > 1
    at, along = step.dims
    assert at.stage is None
    assert along.stage == 0
    assert along.tile < 512


def test_many_writes_that_may_meet_become_lists() -> None:
    stage = _stage(p.update(width=512, count=1000), p.H100, "new")
    (step,) = stage.steps
    assert isinstance(step.method, Listed)
    assert stage.grid[step.method.axis] * step.method.rows >= 6
    assert step.method.describe().startswith("lists of 1 positions, 16 indices at once")
    assert step.dims[0].stage is None


@pytest.mark.parametrize(
    ("rows", "columns", "order"), [(1024, 50000, [1, 0]), (8192, 3072, [0, 1])]
)
def test_columns_that_no_cache_keeps_are_walked_by_rows(
    rows: int, columns: int, order: list[int]
) -> None:
    """77 MB of them would be read from memory for each tile of rows; 5 MB stay in L2."""
    x, w = (p.tensor(name, n, 768, dtype=DType.F16) for name, n in (("x", rows), ("w", columns)))
    product = p.matmul("y", x, w, turned=True)
    program = p.program([x, w], [product], product.out)
    stage = _stage(program, p.H100, "y")
    assert [d.stage for d in stage.steps[0].dims] == order
    verify(p.plan_of(program, p.H100), program, p.H100)
