"""Bounds from comparisons of segment numbers for equality: where the numbers ascend, those that equal a given one are contiguous."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from monotile.analysis.affine import affine
from monotile.analysis.ascending import ascending
from monotile.analysis.dead import Side
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Cast, Expr, Load, axes_of, loads, walk
from monotile.ir.program import At, Compute
from monotile.transform.live.scalars import Scalars


class Segment(NamedTuple):
    """`term`: whether `number`, which ascends along the axis, equals `own`, which does not depend on the axis."""

    term: Expr
    number: Expr
    own: Expr


def segments(e: Expr, axis: Axis, made: Mapping[str, Compute]) -> Iterator[Segment]:
    """The comparisons in `e` of numbers that the call computes. made: Computes that it may load, by name."""
    for term in dict.fromkeys(walk(e)):
        match term:
            case Binary("eq", a, b) if loads(a) and loads(b) and a.dtype.is_int:
                for number, own in ((a, b), (b, a)):
                    apart = axes_of(number) == frozenset({axis}) and axis not in axes_of(own)
                    if apart and ascending(number, axis, made):
                        yield Segment(term, number, own)
                        break
            case _:
                pass


def sides_of(found: Segment, axis: Axis, c: Compute, scalars: Scalars) -> tuple[Side, Side]:
    """Both ends: how many of all numbers are less than a row's own, and how many are not greater."""
    named = axes_of(found.own)
    rows = tuple(At(a) for a in (*c.axes, *c.reduce) if a in named)

    def count(op: str, name: str) -> Expr:
        less = Cast(Binary(op, found.number, found.own), DType.I64)
        counted = scalars.end(name, less, (*rows, At(axis)), rows, "sum")
        return Load(counted, tuple(x.axis for x in rows))

    first, last = count("lt", "segment_first"), count("le", "segment_end")
    return (
        Side(axis, found.term, affine(first), 1, end=False),
        Side(axis, found.term, affine(last), 1, end=True),
    )
