"""Computes reductions in the element order of their only reader.

If a pointwise Compute reads every element of a reduction once but rearranged (windows merged back, a roll, merged heads), the rearrangement
moves into the loads of the reduction. The reader is then its epilogue, and the tensor between them is never stored.

A sum over terms of each row's own takes any shape of its reader that has its elements in the same order (merged heads).

If this would mix a product's rows and columns (in a transposed convolution, the positions within a step), the product is unchanged. Its
reader is computed in the product's order instead, and the reader's own readers are adapted.
"""

import functools
from collections.abc import Mapping, Sequence
from math import prod

import msgspec
import numpy as np

from monotile.analysis.affine import Affine, affine, joined
from monotile.analysis.contraction import contraction
from monotile.analysis.ends import segment_ends
from monotile.analysis.uses import Uses
from monotile.ir.body import Body as Evaluation
from monotile.ir.body import grid
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
    loads,
    map_loads,
    mul,
    substitute,
)
from monotile.ir.program import Compute, Program, Statement
from monotile.transform.rewrite import Body, map_bodies, map_exprs, map_program, with_body
from monotile.transform.simplify.simplify import simplify_compute, simplify_expr

POINTS = 1 << 20  # elements up to which a rearrangement is checked exhaustively


def reindex_reductions(program: Program) -> Program:
    """`program` with such reductions in the shape and order of their readers, or the readers in theirs."""
    uses = Uses(program)
    left: dict[str, _InOrder] = {}

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
                index = _place(producer, reader)
                if index is None:
                    continue
                if _rearranges(producer, reader, index) or _reshapes(producer, reader, index):
                    moved = _moved(producer, reader, index)
                    if not _mixes(producer, moved):
                        out[made[name]], out[k] = moved, _straight(reader, producer.out)
                        continue
                if reader.out.name not in uses.whole and contraction(producer) is not None:
                    found = _in_order(producer, reader, index)
                    if found is not None:
                        out[k], left[reader.out.name] = found.made, found
        return tuple(out)

    program = with_body(program, go(program.body))
    return map_program(program, lambda s: _reading(s, left)) if left else program


class _InOrder(msgspec.Struct, frozen=True):
    """`made` replaces a Compute: its element at `axes` is the former's element at `index`."""

    made: Compute
    axes: tuple[Axis, ...]
    index: tuple[Expr, ...]


def _mixes(p: Compute, moved: Compute) -> bool:
    """Whether some axis of `moved` is in both factors, and none of the product `p` was."""
    before, after = contraction(p), contraction(moved)
    if before is None:
        return False
    return after is None or len(after.batch) > len(before.batch)


def _in_order(p: Compute, reader: Compute, index: tuple[Expr, ...]) -> _InOrder | None:
    """`reader` in the order of `p`, whose element it reads at `index`; None where an axis cannot be computed from those of `p`."""
    at: dict[str, Expr] = {}
    for a in reader.axes:
        parts = [(i, own) for i, own in zip(index, p.axes, strict=True) if a in axes_of(i)]
        match parts:
            case [] if a.extent == 1:
                at[a.name] = idx(0)
            case [(i, own)] if i == a:
                at[a.name] = own
            case [
                (Binary("floordiv", b, Const(n)), outer),
                (Binary("mod", c, Const(m)), inner),
            ] if b == c == a and n == m == inner.extent:
                at[a.name] = add(mul(outer, idx(inner.extent)), inner)
            case _:
                return None
    body = map_loads(
        substitute(reader.body, at), lambda x: Load(p.out, p.axes) if x.tensor == p.out else x
    )
    out = Tensor(reader.out.name, p.out.shape, reader.out.dtype)
    made = Compute(out, p.axes, (), None, body, reader.origin)
    return _InOrder(simplify_compute(made), reader.axes, index)


def _reading(s: Statement, left: Mapping[str, _InOrder]) -> Statement:
    """`s` with loads of reordered tensors adapted."""

    def read(x: Load) -> Expr:
        found = left.get(x.tensor.name)
        if found is None or x.tensor == found.made.out:
            return x
        at = {a.name: i for a, i in zip(found.axes, x.index, strict=True)}
        return Load(found.made.out, tuple(simplify_expr(substitute(i, at)) for i in found.index))

    return map_exprs(s, lambda e: map_loads(e, read))


def _place(p: Compute, reader: Compute) -> tuple[Expr, ...] | None:
    """The single index at which `reader` reads `p`, which has as many elements; None if that is the identity."""
    places = {x.index for x in loads(reader.body) if x.tensor.name == p.out.name}
    if len(places) != 1 or p.out.size != reader.out.size or p.out.size == 0:
        return None
    (index,) = places
    if not index or not reader.axes or any(loads(i) for i in index):
        return None
    return None if p.out.shape == reader.out.shape and index == reader.axes else index


def _rearranges(p: Compute, reader: Compute, index: tuple[Expr, ...]) -> bool:
    """Whether `index` is a rearrangement of all of `p` along leading axes. The last dimension stays, to keep loads along it coalesced.
    It is none where it leaves the bounds of `p`, as it may under a condition."""
    if index[-1] != reader.axes[-1] or p.out.shape[-1] != reader.axes[-1].extent:
        return False
    leading, last = reader.axes[:-1], reader.axes[-1]
    mentioned = frozenset[object]().union(*(axes_of(i) for i in index[:-1]))
    if last in mentioned or not mentioned <= set(leading):
        return False
    extents = p.out.shape[:-1]
    if prod(extents) > POINTS:
        return False
    points = grid(leading, [slice(0, a.extent) for a in leading], {})
    where = np.zeros((), np.int64)
    evaluation = Evaluation({}, points, "")
    for i, n in zip(index[:-1], extents, strict=True):
        found = evaluation.value(i, None)
        if ((found < 0) | (found >= n)).any():
            return False
        where = where * n + found
    shape = tuple(a.extent for a in leading)
    return np.unique(np.broadcast_to(where, shape)).size == prod(extents)


def _reshapes(p: Compute, reader: Compute, index: tuple[Expr, ...]) -> bool:
    """Whether `p` sums over terms of its own, which depend on few of its axes, and `index` keeps its row-major order."""
    return segment_ends(p) is not None and _flat(index, p.out) == _flat(reader.axes, reader.out)


def _flat(index: Sequence[Expr], t: Tensor) -> Affine:
    """The row-major position."""
    terms = zip(index, t.strides, strict=True)
    return joined(affine(functools.reduce(add, (mul(i, idx(n)) for i, n in terms), idx(0))))


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
