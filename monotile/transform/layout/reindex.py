"""Computes reductions in the element order of their only reader.

If a pointwise Compute reads every element of a reduction once but rearranged (windows merged back, a roll, merged
heads), the rearrangement moves into the loads of the reduction. The reader is then its epilogue, and the tensor between them is
never stored.
"""

from math import prod

import numpy as np

from monotile.analysis.uses import Uses
from monotile.ir.body import Body as Evaluation
from monotile.ir.body import grid
from monotile.ir.expr import Expr, Load, Tensor, axes_of, loads, map_loads, substitute
from monotile.ir.program import Compute, Program, Statement
from monotile.transform.rewrite import Body, map_bodies, map_exprs, with_body
from monotile.transform.simplify.simplify import simplify_compute

POINTS = 1 << 20  # elements up to which a rearrangement is checked exhaustively


def reindex_reductions(program: Program) -> Program:
    """`program` with such reductions in the shape and order of their readers."""
    uses = Uses(program)

    def go(body: Body) -> Body:
        made = {s.out.name: k for k, s in enumerate(body) if isinstance(s, Compute) and s.combiner}
        out: list[Statement] = [map_bodies(s, go) for s in body]
        for k, s in enumerate(body):
            if not isinstance(s, Compute) or s.combiner is not None:
                continue
            for name in {x.tensor.name for x in loads(s.body)} & made.keys():
                producer, reader = out[made[name]], out[k]
                if name in uses.whole or uses.readers[name] != 1:
                    continue
                assert isinstance(producer, Compute)
                assert isinstance(reader, Compute)
                index = _rearrangement(producer, reader)
                if index is not None:
                    out[made[name]] = _moved(producer, reader, index)
                    out[k] = _straight(reader, producer.out)
        return tuple(out)

    return with_body(program, go(program.body))


def _rearrangement(p: Compute, reader: Compute) -> tuple[Expr, ...] | None:
    """The one index under which `reader` reads `p`, if it is a rearrangement of all of it along leading axes.

    The last dimension stays, to keep loads along it coalesced.
    """
    places = {x.index for x in loads(reader.body) if x.tensor.name == p.out.name}
    if len(places) != 1 or p.out.size != reader.out.size or p.out.size == 0:
        return None
    (index,) = places
    if not index or not reader.axes or index[-1] != reader.axes[-1]:
        return None
    if p.out.shape == reader.out.shape and index == reader.axes:
        return None  # nothing to do
    if p.out.shape[-1] != reader.axes[-1].extent or any(loads(i) for i in index):
        return None
    leading, last = reader.axes[:-1], reader.axes[-1]
    mentioned = frozenset[object]().union(*(axes_of(i) for i in index[:-1]))
    if last in mentioned or not mentioned <= set(leading):
        return None
    extents = p.out.shape[:-1]
    if prod(extents) > POINTS:
        return None
    points = grid(leading, [slice(0, a.extent) for a in leading], {})
    where = np.zeros((), np.int64)
    evaluation = Evaluation({}, points, "")
    for i, n in zip(index[:-1], extents, strict=True):
        where = where * n + evaluation.index(i, n, None, p.out.name)
    shape = tuple(a.extent for a in leading)
    every = np.unique(np.broadcast_to(where, shape))
    return index if every.size == prod(extents) else None


def _moved(p: Compute, reader: Compute, index: tuple[Expr, ...]) -> Compute:
    """`p` in the shape of `reader`: each element is the one that was at `index`."""
    axes: dict[str, Expr] = {a.name: i for a, i in zip(p.axes, index, strict=True)}
    body = substitute(p.body, axes)
    out = Tensor(p.out.name, reader.out.shape, p.out.dtype)
    moved = Compute(out, reader.axes, p.reduce, p.combiner, body, p.origin)
    return simplify_compute(moved)


def _straight(reader: Compute, old: Tensor) -> Statement:
    """`reader` reading the moved tensor at its own element."""
    new = Tensor(old.name, reader.out.shape, old.dtype)

    def read(x: Load) -> Expr:
        return Load(new, reader.axes) if x.tensor.name == old.name else x

    return map_exprs(reader, lambda e: map_loads(e, read))
