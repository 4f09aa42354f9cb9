"""A reduction in parts: what each part gives, and what the parts give together.

    out[i] = over r of f   becomes   parts[p, i] = over the r of part p of f,   out[i] = over p of parts[p, i]

The order is fixed, so results repeat to the bit.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from monotile.ir.expr import Axis, Binary, Expr, Load, Tensor, add, cast, idx, mul, substitute
from monotile.ir.program import At, Compute, Live, compute

STRAIGHT = 8  # parts that an expression combines
FEW = 8  # results whose parts their readers combine
# Of truths by bits: `or` would ask for one part after the other.
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
    """A reduce axis cut into so many equal pieces. beside: one that is no longer reduced: each of its places is a part as well."""

    axis: int
    count: int
    beside: int | None = None

    def terms(self, c: Compute) -> int:
        """Of a part."""
        apart = 1 if self.beside is None else c.reduce[self.beside].extent
        return math.prod(a.extent for a in c.reduce) // (self.count * apart)


def straight(c: Compute) -> Parts | None:
    """As many as an expression combines, of the first axis that falls into so many."""
    axis = next((p for p, a in enumerate(c.reduce) if a.extent % STRAIGHT == 0), None)
    return None if axis is None else Parts(axis, STRAIGHT)


def partial(
    c: Compute, parts: Parts, name: str = "", term: Term = lambda term, part: term
) -> Compute:
    """What each part gives: [piece, the axes of `c`, place beside]. name: of what it is a part, if not of `c`. term: what is reduced, of a
    term of `c` and the index of its part."""
    share = c.reduce[parts.axis].extent // parts.count
    lost = {parts.beside} | ({parts.axis} if share == 1 else set())
    kept = [p for p in range(len(c.reduce)) if p not in lost]
    beside = () if parts.beside is None else (c.reduce[parts.beside].extent,)
    shape = (parts.count, *c.out.shape, *beside)
    own: list[Axis] = []

    def body(*points: Expr) -> Expr:
        part, inner = points[: len(shape)], dict(zip(kept, points[len(shape) :], strict=True))
        own.extend(a for a in part if isinstance(a, Axis))
        at = {a.name: e for a, e in zip(c.axes, part[1:], strict=False)}
        if parts.beside is not None:
            inner[parts.beside] = part[-1]
        inner[parts.axis] = add(mul(part[0], idx(share)), inner.get(parts.axis, idx(0)))
        at.update({a.name: inner[p] for p, a in enumerate(c.reduce)})
        return term(substitute(c.body, at), part)

    out = Tensor(f"{name or c.out.name}_parts", shape, c.body.dtype)
    extents = tuple(c.reduce[p].extent // (parts.count if p == parts.axis else 1) for p in kept)
    made = compute(out, body, reduce=extents, combiner=c.combiner, origin=c.origin)
    to = dict(zip(c.axes, own[1:], strict=False))
    live = tuple(
        Live(to[x.axis], *x.ends, tuple(At(to[a.axis], a.run) for a in x.at), x.within)
        for x in c.live
    )
    return msgspec.structs.replace(made, live=live)


def combined(c: Compute, parts: Tensor) -> Compute:
    """`c` of its parts."""
    number = parts.size // max(c.out.size, 1)
    assert c.combiner is not None
    if number > STRAIGHT:
        axes, index = over(c, parts)
        return Compute(c.out, c.axes, axes, c.combiner, Load(parts, index), c.origin, c.live)
    total: Expr | None = None
    for part in range(number):
        places = parts.shape[1 + len(c.axes) :]
        piece, place = (part, ()) if not places else (part // places[0], (idx(part % places[0]),))
        load = Load(parts, (idx(piece), *c.axes, *place))
        total = load if total is None else Binary(COMBINE[c.combiner], total, load)
    assert total is not None
    return Compute(c.out, c.axes, (), None, cast(total, c.out.dtype), c.origin, c.live)


def over(c: Compute, parts: Tensor) -> tuple[tuple[Axis, ...], tuple[Expr, ...]]:
    """The reduce axes of what combines the parts, and where it reads them."""
    places = parts.shape[1 + len(c.axes) :]
    axes = tuple(Axis(f"r{p}", n) for p, n in enumerate((parts.shape[0], *places)))
    return axes, (axes[0], *c.axes, *axes[1:])
