"""Copy insertion for Scatters: each gets a separate base, which it updates in place.

Afterwards the base of every Scatter, and the initial value of a loop carry that is updated in place (`analysis.in_place`), is defined by
a Compute, a Scatter or such a loop of the same list of statements, and has no other use, not even in that Scatter's own expressions. The
scheduler places both in the same bytes and may order statements by their reads and writes alone. A base that is an input, a weight, a
carried value, used again, or computed outside the loop that updates it is replaced by a copy. The base may also be an old value that is
updated in place, a state's or one that the enclosing loop carries: its other readers come first (`analysis.states`).
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from monotile.analysis.in_place import carried_in_place, first_updates
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
    used,
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
    counts: Counter[str],
    taken: Names,
    updated: Mapping[str, str],
) -> Body:
    """updated: maps the first update in place of an old value, a state's or one that the enclosing loop carries, to that value's name."""
    out: list[Statement] = []
    here: dict[str, Statement] = {}

    def own(base: Tensor, result: Tensor, origin: str) -> Tensor:
        """`base`, or a copy of it where it may not be overwritten."""
        owned = base.name in here and counts[base.name] == 1
        if owned or updated.get(result.name) == base.name:
            return base
        copy = Tensor(taken.fresh(f"{base.name}_base"), base.shape, base.dtype)
        made = here.get(base.name)
        if isinstance(made, Compute) and not used(
            made
        ):  # a constant is computed again; the last reader may overwrite it
            out.append(msgspec.structs.replace(made, out=copy))
            counts[base.name] -= 1
        else:
            out.append(compute(copy, lambda *axes: Load(base, axes), origin=origin))
        return copy

    for s in body:
        match s:
            case Scatter():
                base = own(s.base, s.out, s.origin)
                s = s if base is s.base else msgspec.structs.replace(s, base=base)
                here[s.out.name] = s
            case Compute():
                here[s.out.name] = s
            case Loop():
                held, within = carried_in_place(s), first_updates(s)
                inits = [own(c.init, c.out, s.origin) if c in held else c.init for c in s.carried]
                if any(x is not c.init for x, c in zip(inits, s.carried, strict=True)):
                    pairs = zip(s.carried, inits, strict=True)
                    new = tuple(msgspec.structs.replace(c, init=x) for c, x in pairs)
                    s = msgspec.structs.replace(s, carried=new)
                s = map_bodies(s, lambda inner, w=within: _body(inner, counts, taken, w))
                here |= {c.out.name: s for c in held}
            case Branch():
                s = map_bodies(s, lambda inner: _body(inner, counts, taken, {}))
        out.append(s)
    return tuple(out)
