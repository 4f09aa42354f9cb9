"""Finds one-hot products: expressions that a comparison makes zero except at one point of an axis."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from monotile.analysis.dead import value_where
from monotile.analysis.unconditional import holding
from monotile.ir.expr import (
    Axis,
    Binary,
    Cast,
    Expr,
    Load,
    axes_of,
    cast,
    map_loads,
    substitute,
    walk,
)
from monotile.ir.program import Compute


class Chosen(NamedTuple):
    """An expression that is `value` where `axis` is `at`, which does not depend on that axis, and 0 elsewhere."""

    axis: Axis
    at: Expr
    value: Expr


def chosen(e: Expr, axes: Sequence[Axis]) -> Iterator[Chosen]:
    """All such forms of `e`, for each of `axes`."""
    for term in dict.fromkeys(walk(e)):
        if not (isinstance(term, Binary) and term.op == "eq" and term.a.dtype.is_int):
            continue
        for at, other in ((term.a, term.b), (term.b, term.a)):
            axis = other.x if isinstance(other, Cast) else other
            if not isinstance(axis, Axis) or axis not in axes or axis in axes_of(at):
                continue
            if value_where(e, lambda x, t=term: False if x == t else None) == 0:
                yield Chosen(axis, at, holding(e, {term}))


def opened(e: Expr, made: Mapping[str, Compute]) -> Expr:
    """`e` with its element-wise operands among `made`, by name, inlined."""

    def go(x: Load) -> Expr:
        s = made.get(x.tensor.name)
        if s is None:
            return x
        at = {a.name: i for a, i in zip(s.axes, x.index, strict=True)}
        return cast(opened(substitute(s.body, at), made), x.dtype)

    return map_loads(e, go)
