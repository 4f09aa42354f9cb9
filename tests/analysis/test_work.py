"""The least that a call has to do."""

import pytest

from monotile.analysis.work import Work, work
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Load, Tensor, cast, mul
from monotile.ir.program import Carry, Loop, Program, Weight, compute
from monotile.targets.cuda.target import cuda_target

F16, F32 = DType.F16, DType.F32


def product(x: Tensor, w: Tensor, y: Tensor, *where: Axis):
    return compute(
        y,
        lambda m, n, k: mul(cast(Load(x, (m, k)), F32), cast(Load(w, (*where, n, k)), F32)),
        reduce=(w.shape[-1],),
        combiner="sum",
    )


def test_a_product_moves_each_operand_once() -> None:
    x, w, y = Tensor("x", (4, 8), F16), Tensor("w", (6, 8), F16), Tensor("y", (4, 6), F16)
    found = work(Program((x,), (Weight(w, ("w",)),), (product(x, w, y),), (y,)))
    assert found == Work(2 * (4 * 8 + 6 * 8 + 4 * 6), {"mma16": 2 * 4 * 6 * 8})


def test_an_embedding_moves_the_rows_that_are_asked_for() -> None:
    ids, table, y = Tensor("ids", (3,), DType.I64), Tensor("t", (1000, 8), F16), Tensor("y", (3, 8), F16)  # fmt: skip
    rows = compute(y, lambda i, k: Load(table, (Load(ids, (i,)), k)))
    found = work(Program((ids,), (Weight(table, ("t",)),), (rows,), (y,)))
    assert found == Work(3 * 8 + 3 * 8 * 2 + 3 * 8 * 2, {})


def test_a_loop_runs_all_its_iterations() -> None:
    x, w = Tensor("x", (4, 8), F32), Tensor("w", (5, 8, 8), F32)
    h, h1, y = Tensor("h", (4, 8), F32), Tensor("h1", (4, 8), F32), Tensor("y", (4, 8), F32)
    layer = Axis("l", 5)
    loop = Loop(layer, (Carry(x, h, h1, y),), (), (product(h, w, h1, layer),))
    weights = (Weight(w, tuple(f"w{k}" for k in range(5)), table=1),)
    found = work(Program((x,), weights, (loop,), (y,)))
    assert found.operations == {"float32": 5 * 2 * 4 * 8 * 8}
    assert (
        found.moved == w.nbytes + y.nbytes
    )  # the first value of a carry is read by no statement of its own


def test_seconds_are_those_of_what_takes_longest() -> None:
    h100 = cuda_target("sm_90a")
    assert Work(h100.l2_bytes, {}).seconds(h100) == h100.l2_bytes / h100.dram_bandwidth
    many = Work(1, {"mma16": 10**12, "float32": 10**12})
    assert many.seconds(h100) == pytest.approx(1e12 / 798e12 + 3e12 / 415e12)
