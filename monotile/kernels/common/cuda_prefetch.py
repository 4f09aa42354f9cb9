"""What can be asked for before it is used."""

from collections.abc import Sequence

from monotile.analysis.guarded import choices
from monotile.analysis.unconditional import TRUE, conditional, either, unconditional
from monotile.codegen.packs import LANE
from monotile.codegen.vector import VectorEmitter
from monotile.ir.expr import Axis, Const, Expr, Load, Select, axes_of, loads, rebuild


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


def looking_up(bodies: Sequence[Expr], width: int) -> list[Load]:
    """What `bodies` always read to know where something else lies, alike for all lanes of a vector."""
    found = (y for body in bodies for x in unconditional(body) for i in x.index for y in loads(i))
    lane = Axis(LANE, width)
    return [
        y
        for y in dict.fromkeys(found)
        if lane not in axes_of(y) and not any(loads(i) for i in y.index)
    ]
