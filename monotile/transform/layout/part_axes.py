"""Splits a dimension that is one only in storage, where all statements that access it index it as several.

A convolution's weights are standardised, each filter in one row, by a function that takes batches of rows: `weight.reshape(1, filters,
-1)`, viewed back as [filters, channels, height, width]. After the split any of these dimensions may be the last in memory
(`channels_last.py`). The counterpart of `merge_axes.py`, for dimensions that a sum splits.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec

from monotile.analysis.dependence import loads_of
from monotile.analysis.uses import Uses
from monotile.ir.expr import (
    Axis,
    Binary,
    Const,
    Expr,
    Load,
    Tensor,
    add,
    axes_of,
    idx,
    map_loads,
    mul,
    substitute,
    walk,
)
from monotile.ir.program import (
    Compute,
    Program,
    Scatter,
    Statement,
    compute,
    statements,
)
from monotile.transform.rewrite import map_exprs, map_program
from monotile.transform.simplify.simplify import simplify_compute, simplify_expr

Parted = Mapping[
    str, tuple[int, int, Tensor]
]  # the dimension, the extent of its inner part, and the tensor with two in its place


def part_axes(program: Program) -> Program:
    """`program` with such dimensions split."""
    found = dict(_found(program))
    if not found:
        return program
    return part_axes(map_program(program, lambda s: _parted(s, found)))


def _found(program: Program) -> Iterator[tuple[str, tuple[int, int, Tensor]]]:
    whole, read = Uses(program).whole, defaultdict[str, list[tuple[Statement, Load]]](list)
    for s in statements(program.body):
        for x in loads_of(s) if isinstance(s, Compute | Scatter) else ():
            read[x.tensor.name].append((s, x))
    for s in statements(program.body):
        if not isinstance(s, Compute) or s.combiner is not None or s.live or s.out.name in whole:
            continue
        for d, axis in enumerate(s.axes):
            inner = _inner(s, axis)
            places = [(r, x.index[d]) for r, x in read[s.out.name]]
            if (
                inner
                and any(_summed(r, i) for r, i in places)
                and all(_comes_apart(i, inner) for _, i in places)
            ):
                shape = (*s.out.shape[:d], axis.extent // inner, inner, *s.out.shape[d + 1 :])
                yield s.out.name, (d, inner, msgspec.structs.replace(s.out, shape=shape))
                break


def _inner(s: Compute, axis: Axis) -> int:
    """The divisor that `s` applies to the index along an axis, the largest if there are several; 0 if there is none."""
    found = {
        n
        for e in walk(s.body)
        if isinstance(e, Binary) and e.op in {"floordiv", "mod"} and e.a == axis
        if isinstance(e.b, Const) and isinstance(n := e.b.value, int)
    }
    return max((n for n in found if 1 < n < axis.extent and axis.extent % n == 0), default=0)


def _summed(reader: Statement, index: Expr) -> bool:
    """Whether `reader` sums over a part of the dimension."""
    reduce = {*reader.reduce} if isinstance(reader, Compute) else set[Axis]()
    return len(axes_of(index)) > 1 and bool(axes_of(index) & reduce)


def _apart(index: Expr, inner: int) -> tuple[Expr, Expr]:
    """The quotient and the remainder of an index."""
    parts = (Binary(op, index, idx(inner)) for op in ("floordiv", "mod"))
    outer, rest = map(simplify_expr, parts)
    return outer, rest


def _comes_apart(index: Expr, inner: int) -> bool:
    """Whether the split introduces no division that the index does not have."""
    return all(_divisions(part) <= _divisions(index) for part in _apart(index, inner))


def _divisions(e: Expr) -> int:
    return sum(isinstance(x, Binary) and x.op in {"floordiv", "mod"} for x in walk(e))


def _parted(s: Statement, found: Parted) -> Statement:
    def read(x: Load) -> Expr:
        if x.tensor.name not in found:
            return x
        d, inner, t = found[x.tensor.name]
        return Load(t, (*x.index[:d], *_apart(x.index[d], inner), *x.index[d + 1 :]))

    s = map_exprs(s, lambda e: map_loads(e, read))
    if not isinstance(s, Compute) or s.out.name not in found:
        return s
    d, inner, out = found[s.out.name]

    def body(*i: Expr) -> Expr:
        whole = add(mul(i[d], idx(inner)), i[d + 1])
        at = zip(s.axes, (*i[:d], whole, *i[d + 2 :]), strict=True)
        return substitute(s.body, {a.name: e for a, e in at})

    return simplify_compute(compute(out, body, origin=s.origin))
