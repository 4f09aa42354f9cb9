"""Which loads can be prefetched."""

from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from monotile.analysis.guarded import choices
from monotile.analysis.unconditional import TRUE, conditional, either, unconditional
from monotile.codegen.packs import LANE
from monotile.codegen.vector import VectorEmitter
from monotile.ir.expr import Axis, Const, Expr, Load, Select, axes_of, loads, rebuild
from monotile.ir.intervals import interval


def known_ahead(e: VectorEmitter, bodies: Sequence[Expr]) -> dict[Load, Expr]:
    """What `bodies` read of other stages' results and of what is given: see `read_by`."""
    return {x: when for x, when in read_by(bodies).items() if not e.computed(x.tensor)}


def read_by(bodies: Sequence[Expr]) -> dict[Load, Expr]:
    """What `bodies` read, each with the condition under which they do, but for what is found by looking something up, or read where data
    say so as well."""
    wanted: dict[Load, Expr] = {}
    unknown: set[Load] = set()
    for body in bodies:
        for x, when in conditional(body):
            if any(map(loads, x.index)):
                continue
            if loads(when):
                unknown.add(x)
            else:
                known = wanted.get(x)
                wanted[x] = when if known is None else either(known, when)
    # Under which conditions a Load is read for an index is not known here.
    unknown |= {y for body in bodies for x in loads(body) for i in x.index for y in loads(i)}
    return {x: when for x, when in wanted.items() if when == TRUE or x not in unknown}


def read_at_once(bodies: Sequence[Expr]) -> dict[Load | Select, Expr]:
    """The same, with a choice between several loads, as of a concatenation, in the place of these."""
    found = dict.fromkeys(x for body in bodies for x in choices(body))

    def go(x: Expr) -> Expr:
        return Const(0, x.dtype) if x in found else rebuild(x, go)

    rest = read_by([go(body) for body in bodies] if found else bodies)
    return {**dict.fromkeys(found, TRUE), **rest}


class LookedUp(NamedTuple):
    """places: what says where something else lies, read in any case. found: what is read there, each with the condition under which it is."""

    places: list[Load]
    found: dict[Load, Expr]


def looked_up(bodies: Sequence[Expr], there: Set[Expr], width: int) -> LookedUp:
    """What `bodies` look up alike for all lanes of a vector, but for what is read where data say so, or by two steps. there: what may be read under
    any condition."""
    places: dict[Load, None] = {}
    found: dict[Load, Expr] = {}
    unknown = {y for body in bodies for x in loads(body) for i in x.index for y in loads(i)}
    for x, when in (read for body in bodies for read in conditional(body)):
        asked = [y for i in x.index for y in loads(i)]
        if when == TRUE:
            there = there | {y for i in x.index for y in unconditional(i)}
        known = [
            y
            for y in asked
            if y in there and Axis(LANE, width) not in axes_of(y) and not any(map(loads, y.index))
        ]
        places |= dict.fromkeys(known)
        if not asked or len(known) < len(asked) or loads(when):
            unknown.add(x)
        else:
            found[x] = either(found.get(x, when), when)
    return LookedUp(
        list(places), {x: when for x, when in found.items() if when == TRUE or x not in unknown}
    )


def always_there(bodies: Sequence[Expr]) -> Iterator[Load]:
    """What `bodies` read to know where something else lies that has such an element for all values of the axes."""
    for x in (x for body in bodies for x in loads(body)):
        for y in (y for i in x.index for y in loads(i)):
            ends = [interval(i) for i in y.index]
            sizes = zip(ends, y.tensor.shape, strict=True)
            if all(r is not None and r.inside(0, n - 1) for r, n in sizes):
                yield y
