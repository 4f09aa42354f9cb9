"""Narrows reduce axes to the range that contributes: windows that reach beyond their input, known masks.

If a term is the combiner's identity wherever an axis is outside some range, the axis shrinks to that range.
"""

import msgspec

from monotile.analysis.affine import affine
from monotile.analysis.ends import PLAIN, neutral
from monotile.ir.expr import Axis, Cast, Const, Expr, Select, add, idx, substitute
from monotile.ir.intervals import NOTHING_KNOWN, Facts, Interval, Ranges
from monotile.ir.program import Compute


def narrow(s: Compute) -> Compute:
    """`s` with the shortest possible reduce axes."""
    if s.combiner not in PLAIN:
        return s
    facts = _contributes(s.body, s.combiner, NOTHING_KNOWN)
    axes: list[Axis] = []
    moved: dict[str, Expr] = {}
    for axis in s.reduce:
        lo, hi = _range(axis, facts)
        extent = max(hi - lo + 1, 0)
        axes.append(axis if extent == axis.extent else Axis(axis.name, extent))
        if extent != axis.extent:
            moved[axis.name] = add(axes[-1], idx(lo))
    if not moved:
        return s
    return msgspec.structs.replace(s, reduce=tuple(axes), body=substitute(s.body, moved))


def _range(axis: Axis, facts: Facts) -> Interval:
    """The range of `axis` by the facts about it and its sums with constants."""
    found = Interval(0, axis.extent - 1)
    for e, known in facts.items():
        match affine(e).terms:
            case ((atom, 1),) if atom == axis:
                shift = affine(e).constant
                found = found.meet(Interval(known.lo - shift, known.hi - shift))
            case _:
                pass
    return found


def _contributes(e: Expr, combiner: str, facts: Facts) -> Facts:
    """The facts that hold where `e` is not the combiner's identity."""
    match e:
        case Cast(x) if combiner == "sum":  # of 0, in every type
            return _contributes(x, combiner, facts)
        case Select(cond, then, otherwise):
            for side, other, value in ((then, otherwise, True), (otherwise, then, False)):
                if isinstance(other, Const) and other == neutral(combiner, e.dtype):
                    inside = {**facts, **Ranges(facts).learn(cond, value)}
                    return _contributes(side, combiner, inside)
        case _:
            pass
    return facts
