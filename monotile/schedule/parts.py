"""Splits a reduction into partial reductions and one that combines them.

    out[i] = over r of f   becomes   parts[p, i] = over the r of part p of f,   out[i] = over p of parts[p, i]

The order is fixed, so results are bit-reproducible.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from monotile.analysis.affine import normalised_indices
from monotile.ir.expr import (
    Axis,
    Binary,
    Expr,
    Load,
    Tensor,
    add,
    binary,
    cast,
    idx,
    mul,
    substitute,
)
from monotile.ir.program import At, Compute, Live, compute

STRAIGHT = 8  # parts that one expression combines
FEW = 8  # results whose parts their readers combine
# Not for truths by bits: `or` would load one part after the other.
COMBINE = {
    "sum": "add",
    "prod": "mul",
    "max": "max",
    "min": "min",
    "any": "bitor",
    "all": "bitand",
}
Term = Callable[[Expr, Sequence[Expr]], Expr]


@dataclass(frozen=True, slots=True)
class Parts:
    """A reduction axis cut into equal pieces. beside: an axis that is no longer reduced: each of its positions is a part as well.
    joined: its positions are neighbours of the results' last axis and form one axis with it, so that vectors run along both."""

    axis: int
    count: int
    beside: int | None = None
    joined: bool = False

    def terms(self, c: Compute) -> int:
        """Terms of a part."""
        apart = 1 if self.beside is None else c.reduce[self.beside].extent
        return math.prod(a.extent for a in c.reduce) // (self.count * apart)


def straight(c: Compute) -> Parts | None:
    """How many parts one expression combines, from the first axis that divides into so many."""
    axis = next((p for p, a in enumerate(c.reduce) if a.extent % STRAIGHT == 0), None)
    return None if axis is None else Parts(axis, STRAIGHT)


def partial(
    c: Compute, parts: Parts, name: str = "", term: Term = lambda term, part: term
) -> Compute:
    """The partial reduction: [piece, the axes of `c`, place beside], or with the last two as one. name: of the result whose parts these
    are, if not of `c`. term: the reduced expression, given a term of `c` and the index of its part."""
    share = c.reduce[parts.axis].extent // parts.count
    lost = {parts.beside} | ({parts.axis} if share == 1 else set())
    kept = [p for p in range(len(c.reduce)) if p not in lost]
    places = 1 if parts.beside is None else c.reduce[parts.beside].extent
    shape = (parts.count, *c.out.shape, *(() if parts.beside is None else (places,)))
    if parts.joined:
        shape = (*shape[:-2], shape[-2] * places)
    own: list[Axis] = []

    def body(*points: Expr) -> Expr:
        part, inner = points[: len(shape)], dict(zip(kept, points[len(shape) :], strict=True))
        own.extend(a for a in part if isinstance(a, Axis))
        at = {a.name: e for a, e in zip(c.axes, part[1:], strict=False)}
        if parts.beside is not None:
            inner[parts.beside] = part[-1]
        if parts.joined:
            assert parts.beside is not None
            at[c.axes[-1].name] = binary("floordiv", part[-1], idx(places))
            inner[parts.beside] = binary("mod", part[-1], idx(places))
        inner[parts.axis] = add(mul(part[0], idx(share)), inner.get(parts.axis, idx(0)))
        at.update({a.name: inner[p] for p, a in enumerate(c.reduce)})
        return term(substitute(c.body, at), part)

    out = Tensor(f"{name or c.out.name}_parts", shape, c.body.dtype)
    extents = tuple(c.reduce[p].extent // (parts.count if p == parts.axis else 1) for p in kept)
    made = compute(out, body, reduce=extents, combiner=c.combiner, origin=c.origin)
    if parts.joined:
        made = msgspec.structs.replace(made, body=normalised_indices(made.body))
    to = dict(zip(c.axes, own[1:], strict=False))
    live = tuple(
        Live(to[x.axis], *x.ends, tuple(At(to[a.axis], a.run) for a in x.at), x.within)
        for x in c.live
    )
    return msgspec.structs.replace(made, live=live)


def combined(c: Compute, parts: Tensor) -> Compute:
    """`c` computed from its parts."""
    number = parts.size // max(c.out.size, 1)
    assert c.combiner is not None
    if number > STRAIGHT:
        axes, index = over(c, parts)
        return Compute(c.out, c.axes, axes, c.combiner, Load(parts, index), c.origin, c.live)
    total: Expr | None = None
    places = number // parts.shape[0]
    for part in range(number):
        load = Load(parts, _index(c, parts, idx(part // places), idx(part % places)))
        total = load if total is None else Binary(COMBINE[c.combiner], total, load)
    assert total is not None
    return Compute(c.out, c.axes, (), None, cast(total, c.out.dtype), c.origin, c.live)


def over(c: Compute, parts: Tensor) -> tuple[tuple[Axis, ...], tuple[Expr, ...]]:
    """The reduction axes of the combination, and the index at which it reads the parts."""
    places = parts.size // (max(c.out.size, 1) * parts.shape[0])
    extents = (parts.shape[0], places) if places > 1 else parts.shape[:1]
    axes = tuple(Axis(f"r{p}", n) for p, n in enumerate(extents))
    return axes, _index(c, parts, axes[0], axes[-1])


def _index(c: Compute, parts: Tensor, piece: Expr, place: Expr) -> tuple[Expr, ...]:
    """The index of a part of a result of `c`. place: its position along `beside`, if there is one."""
    if len(parts.shape) > 1 + len(c.axes):
        return (piece, *c.axes, place)
    if parts.shape[1:] == c.out.shape:
        return (piece, *c.axes)
    *before, last = c.axes
    return (piece, *before, add(mul(last, idx(parts.shape[-1] // last.extent)), place))
