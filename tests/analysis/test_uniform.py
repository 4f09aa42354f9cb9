"""Conditions that all lanes of a vector share, against all values of what they are made of."""

import itertools

import pytest

from monotile.analysis.affine import affine
from monotile.analysis.uniform import fold_uniform
from monotile.ir.expr import Axis, Binary, Const, Expr, add, axes_of, idx, mul, substitute

LANE, OTHER = Axis("lane", 4), Axis("i", 6)


def holds(e: Expr, lane: int, other: int) -> bool:
    at = substitute(e, {"lane": idx(lane), "i": idx(other)})
    assert isinstance(at, Binary)
    a, b = (affine(x).constant for x in (at.a, at.b))
    return {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "eq": a == b, "ne": a != b}[at.op]


@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparisons(op: str) -> None:
    decided = 0
    for along, step, limit in itertools.product((1, -1, 2), (4, 8, 3), (-5, 0, 4, 7, 8)):
        e = Binary(op, add(mul(OTHER, idx(step)), mul(LANE, idx(along))), idx(limit))
        found = fold_uniform(e, LANE)
        if LANE in axes_of(found):
            assert found == e
            continue
        decided += 1
        for lane, other in itertools.product(range(4), range(6)):
            assert holds(found, lane, other) == holds(e, lane, other)
    assert decided > 0 or op in ("eq", "ne")


def test_quotients() -> None:
    """The pixel of a channel: four channels that begin at a multiple of four have one."""
    pixel = Binary("floordiv", add(mul(OTHER, idx(4)), LANE), idx(8))
    found = fold_uniform(Binary("eq", pixel, idx(2)), LANE)
    assert LANE not in axes_of(found)
    assert [holds(found, 0, i) for i in range(6)] == [i // 2 == 2 for i in range(6)]


def test_only_comparisons_of_indices() -> None:
    e = add(LANE, OTHER)
    assert fold_uniform(e, LANE) is e
    assert isinstance(idx(0), Const)
