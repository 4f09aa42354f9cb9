"""Bounds among conditions, against all values of what they are made of."""

import itertools

from monotile.analysis.affine import affine
from monotile.analysis.index_ranges import IndexRange, index_ranges
from monotile.ir.expr import Axis, Binary, Expr, add, idx, mul, substitute

ROW, TAP = Axis("row", 6), Axis("tap", 3)


def test_padding() -> None:
    """What a window asks of a row and a column: each is two bounds of one sum."""
    row, column = add(mul(ROW, idx(2)), TAP), add(ROW, mul(TAP, idx(3)))
    cond = both(
        Binary("ge", row, idx(1)),
        Binary("lt", column, idx(9)),
        Binary("lt", row, idx(7)),
        Binary("gt", idx(2), mul(ROW, idx(-1))),  # of one bound only
        Binary("ge", column, idx(2)),
    )
    pairs, rest = index_ranges(cond)
    assert len(pairs) == 2
    assert len(rest) == 1
    for place in itertools.product(range(6), range(3)):
        parts = [inside(p, place) for p in pairs] + [holds(e, place) for e in rest]
        assert all(parts) == holds(cond, place)


def both(*terms: Expr) -> Expr:
    first, *others = terms
    return Binary("and", first, both(*others)) if others else first


def at(e: Expr, place: tuple[int, int]) -> int:
    return affine(substitute(e, {"row": idx(place[0]), "tap": idx(place[1])})).constant


def inside(b: IndexRange, place: tuple[int, int]) -> bool:
    return b.low <= at(b.value.expr, place) <= b.high


def holds(e: Expr, place: tuple[int, int]) -> bool:
    assert isinstance(e, Binary)
    if e.op == "and":
        return holds(e.a, place) and holds(e.b, place)
    a, b = at(e.a, place), at(e.b, place)
    return {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[e.op]
