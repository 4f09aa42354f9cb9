"""Reuse in space and time, intensity, and what is printed of them."""

import pytest

from monotile.analysis.facts import show
from monotile.analysis.reuse import Reuse, footprint, intensity, reuses
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Load, Tensor, idx
from monotile.ir.program import Compute, Program, compute

F32 = DType.F32
A, B = Tensor("a", (16, 32), F32), Tensor("b", (32, 64), F32)


def product() -> Compute:
    return compute(
        Tensor("y", (16, 64), F32),
        lambda i, j, k: Binary("mul", Load(A, (i, k)), Load(B, (k, j))),
        reduce=(32,),
        combiner="sum",
    )


def twice() -> Compute:
    return compute(Tensor("z", (16, 32), F32), lambda i, k: Binary("add", *[Load(A, (i, k))] * 2))


def test_reuse_in_space_and_time() -> None:
    body = (product(), twice())
    program = Program((A, B), (), body, (body[0].out, body[1].out))
    assert list(reuses(program)) == [Reuse("a", 2, 64.0), Reuse("b", 1, 16.0)]


def test_products_are_more_intense_than_sums() -> None:
    assert intensity(product()) > 10 * intensity(twice())


@pytest.mark.parametrize(("tile", "wanted"), [(1, 4 * 32), (4, 4 * 4 * 32), (99, 4 * 16 * 32)])
def test_footprint_of_a_tile(tile: int, wanted: int) -> None:
    load = Load(A, (Axis("i0", 99), Axis("r0", 32)))
    assert footprint(load, {"i0": tile, "r0": 32, "i1": 7}) == wanted


@pytest.mark.parametrize(
    ("op", "tile", "wanted"),
    [
        ("floordiv", 1, 1), ("floordiv", 2, 1), ("floordiv", 4, 1), ("floordiv", 16, 4),
        ("floordiv", 3, 2), ("floordiv", 6, 3),  # which may begin within a run
        ("mod", 1, 1), ("mod", 2, 2), ("mod", 4, 4), ("mod", 16, 4), ("mod", 3, 3),
    ],
)  # fmt: skip
def test_footprint_of_runs(op: str, tile: int, wanted: int) -> None:
    """Heads that share keys read the same ones."""
    axis = Axis("i0", 32)
    load = Load(A, (Binary(op, axis, idx(4)), Axis("r0", 32)))
    assert footprint(load, {"i0": tile, "r0": 32}) == 4 * 32 * wanted


def test_what_does_not_vary_is_one_element() -> None:
    assert footprint(Load(A, (idx(0), idx(0))), {"i0": 9}) == 4


def test_facts_as_text() -> None:
    s = product()
    text = show(Program((A, B), (), (s,), (s.out,)))
    assert "y: a reduction, b reduction; " in text
    assert "a: 1 readers, each element 64 times by one of them" in text
