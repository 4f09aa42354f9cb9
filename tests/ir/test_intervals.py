"""Intervals hold every value that an expression takes."""

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monotile.ir.body import Body
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Cast, Expr, Load, Select, Tensor, Unary, const, idx
from monotile.ir.intervals import Interval, interval, learn, truth
from tests.ir.strategies import Builder

A, B = Axis("i0", 6), Axis("i1", 5)
GRID = dict(
    zip(("i0", "i1"), (g.reshape(-1) for g in np.meshgrid(range(6), range(5))), strict=True)
)


def value(e: Expr) -> np.ndarray[Any, Any]:
    return np.broadcast_to(Body({}, GRID, "").value(e, None), GRID["i0"].shape)


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_value_lies_inside(data: st.DataObject) -> None:
    b = Builder(data.draw)
    e, f = b.integer([A, B], 4), b.integer([A, B], 3)
    found = interval(e)
    assert found is not None
    assert all(found.lo <= v <= found.hi for v in value(e))
    cond = Binary(b.pick(["lt", "le", "gt", "ge", "eq", "ne"]), e, f)
    assert truth(cond) in (None, *set(value(cond)))
    for taken in (True, False):
        facts = learn(cond, taken)
        where = value(cond) == taken
        for node in (e, f, A, B):
            inside = interval(node, facts)
            assert inside is not None
            assert all(inside.lo <= v <= inside.hi for v in value(node)[where])


def test_conditions_narrow_what_they_are_made_of() -> None:
    cond = Binary("lt", Binary("add", Binary("mul", A, idx(2)), idx(1)), idx(6))
    assert interval(A, learn(cond, True)) == Interval(0, 2)
    assert interval(A, learn(cond, False)) == Interval(3, 5)
    both = Binary("and", cond, Binary("ge", B, idx(3)))
    assert interval(B, learn(both, True)) == Interval(3, 4)
    assert interval(B, learn(both, False)) == Interval(0, 4)
    neither = Unary("not", Binary("or", cond, Binary("ge", B, idx(3))))
    assert interval(B, learn(neither, True)) == Interval(0, 2)


def test_selects_see_their_condition() -> None:
    e = Select(Binary("lt", A, idx(2)), A, Binary("sub", A, idx(2)))
    assert interval(e) == Interval(0, 3)


def test_what_may_wrap_is_not_known() -> None:
    big = const(2**62, DType.I64)
    whole = Interval(-(2**63), 2**63 - 1)
    assert interval(Binary("add", Binary("mul", big, idx(1)), big)) == whole
    assert interval(Load(Tensor("t", (), DType.I64), ())) == whole
    assert interval(Load(Tensor("t", (), DType.U8), ())) == Interval(0, 255)
    assert interval(Cast(A, DType.F32)) is None
