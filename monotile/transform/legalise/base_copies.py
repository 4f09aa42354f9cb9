"""Copy insertion for Scatters: each gets a base of its own, which it updates in place.

Afterwards the base of every Scatter, and what a loop begins with that it updates in place (`analysis.in_place`), is defined by a Compute,
a Scatter or such a loop of the same list of statements, or carried in place by the loop around, and has no other use, not even in that Scatter's own expressions. The scheduler places both in the same bytes and may order statements by
their reads and writes alone. A base that is an input, a weight, a carried value, used again, or made outside the loop that
updates it is replaced by a copy. The base may also be the old value of a state that is updated in place
(`analysis.states`).
"""

from collections.abc import Mapping

import msgspec

from monotile.analysis.in_place import carried_in_place, updated_in
from monotile.analysis.states import scattered
from monotile.analysis.uses import mentions
from monotile.ir.expr import Load, Tensor
from monotile.ir.program import (
    Branch,
    Compute,
    Loop,
    Program,
    Scatter,
    Statement,
    compute,
)
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, with_body


def insert_base_copies(program: Program) -> Program:
    """`program` with a copy before each Scatter that may not overwrite its base."""
    counts = mentions(program)
    taken = Names(program)
    return with_body(program, _body(program.body, counts, taken, scattered(program)))


def _body(
    body: Body,
    counts: Mapping[str, int],
    taken: Names,
    states: Mapping[str, str],
    updated: frozenset[str] = frozenset(),
) -> Body:
    """states: by the names of what updates a state in place, the name of its old value. updated: what the loop around may write over."""
    out: list[Statement] = []
    here: set[str] = set()

    def own(base: Tensor, result: Tensor, origin: str) -> Tensor:
        """`base`, or a copy of it where it may not be written over."""
        owned = base.name in here and counts[base.name] == 1
        if owned or states.get(result.name) == base.name or base.name in updated:
            return base
        copy = Tensor(taken.fresh(f"{base.name}_base"), base.shape, base.dtype)
        out.append(compute(copy, lambda *axes: Load(base, axes), origin=origin))
        return copy

    for s in body:
        match s:
            case Scatter():
                base = own(s.base, s.out, s.origin)
                s = s if base is s.base else msgspec.structs.replace(s, base=base)
                here.add(s.out.name)
            case Compute():
                here.add(s.out.name)
            case Loop():
                held = carried_in_place(s)
                within = updated_in(s)
                inits = [own(c.init, c.out, s.origin) if c in held else c.init for c in s.carried]
                if any(x is not c.init for x, c in zip(inits, s.carried, strict=True)):
                    pairs = zip(s.carried, inits, strict=True)
                    new = tuple(msgspec.structs.replace(c, init=x) for c, x in pairs)
                    s = msgspec.structs.replace(s, carried=new)
                s = map_bodies(s, lambda inner, w=within: _body(inner, counts, taken, {}, w))
                here.update(c.out.name for c in held)
            case Branch():
                s = map_bodies(s, lambda inner: _body(inner, counts, taken, {}))
        out.append(s)
    return tuple(out)
