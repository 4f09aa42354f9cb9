"""Merges two dimensions that exist only between element-wise statements, where all readers index them as one.

Attention of windows of a batch, each with a mask: `scores.view(images, windows, ...) + mask`, viewed back as [images * windows, ...] for
a softmax. With one dimension, the sum has the order of its operands and of its readers, so it may be fused with them (into attention,
among others).
"""

from collections import defaultdict
from collections.abc import Mapping

import msgspec

from monotile.analysis.dependence import loads_of
from monotile.analysis.uses import Uses
from monotile.ir.expr import (
    Binary,
    Const,
    Expr,
    Load,
    Tensor,
    idx,
    map_loads,
    substitute,
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
from monotile.transform.simplify.simplify import simplify_compute

Merged = Mapping[
    str, tuple[int, Tensor]
]  # the first of two dimensions, and the tensor with one in their place


def merge_axes(program: Program) -> Program:
    """`program` with such dimensions merged."""
    found = _found(program)
    if not found:
        return program
    return merge_axes(map_program(program, lambda s: _merged(s, found)))


def _found(program: Program) -> Merged:
    whole, places = Uses(program).whole, defaultdict[str, set[tuple[Expr, ...]]](set)
    for s in statements(program.body):
        for x in loads_of(s) if isinstance(s, Compute | Scatter) else ():
            places[x.tensor.name].add(x.index)
    out: dict[str, tuple[int, Tensor]] = {}
    for s in statements(program.body):
        if not isinstance(s, Compute) or s.combiner is not None or s.out.name in whole:
            continue
        indices = places.get(s.out.name, set())
        for d in range(len(s.axes) - 1):
            inner = s.axes[d + 1].extent
            if indices and inner > 1 and all(_together(i[d], i[d + 1], inner) for i in indices):
                shape = (*s.out.shape[:d], s.out.shape[d] * inner, *s.out.shape[d + 2 :])
                out[s.out.name] = d, msgspec.structs.replace(s.out, shape=shape)
                break
    return out


def _together(outer: Expr, inner: Expr, extent: int) -> bool:
    """Whether these are the quotient and the remainder of one number."""
    match outer, inner:
        case Binary("floordiv", a, Const(n)), Binary("mod", b, Const(m)):
            return a == b and n == m == extent
        case _:
            return False


def _merged(s: Statement, found: Merged) -> Statement:
    def read(x: Load) -> Expr:
        if x.tensor.name not in found:
            return x
        d, t = found[x.tensor.name]
        outer = x.index[d]
        assert isinstance(outer, Binary)
        return Load(t, (*x.index[:d], outer.a, *x.index[d + 2 :]))

    s = map_exprs(s, lambda e: map_loads(e, read))
    if not isinstance(s, Compute) or s.out.name not in found:
        return s
    d, out = found[s.out.name]
    inner = idx(s.axes[d + 1].extent)

    def body(*i: Expr) -> Expr:
        apart = (Binary("floordiv", i[d], inner), Binary("mod", i[d], inner))
        at = zip(s.axes, (*i[:d], *apart, *i[d + 1 :]), strict=True)
        return substitute(s.body, {a.name: e for a, e in at})

    return simplify_compute(compute(out, body, origin=s.origin))
