"""Copy insertion for Scatters: each gets a base of its own, which it updates in place.

Afterwards the base of every Scatter is defined by a Compute or Scatter of the same list of statements and has no other
use, not even in that Scatter's own expressions. The scheduler places both in the same bytes and may order statements by
their reads and writes alone. A base that is an input, a weight, a carried value, used again, or made outside the loop that
updates it is replaced by a copy. The base may also be the old value of a state that is updated in place
(`analysis.states`).
"""

from collections.abc import Mapping

import msgspec

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


def _body(body: Body, counts: Mapping[str, int], taken: Names, states: Mapping[str, str]) -> Body:
    """states: by the names of Scatters that update a state in place, the name of its old value."""
    out: list[Statement] = []
    here: set[str] = set()
    for s in body:
        match s:
            case Scatter():
                owned = s.base.name in here and counts[s.base.name] == 1
                if not owned and states.get(s.out.name) != s.base.name:
                    copy = Tensor(taken.fresh(f"{s.base.name}_base"), s.base.shape, s.base.dtype)
                    out.append(_copy(s, copy))
                    s = msgspec.structs.replace(s, base=copy)
                here.add(s.out.name)
            case Compute():
                here.add(s.out.name)
            case Loop() | Branch():
                s = map_bodies(s, lambda inner: _body(inner, counts, taken, {}))
        out.append(s)
    return tuple(out)


def _copy(s: Scatter, to: Tensor) -> Compute:
    return compute(to, lambda *axes: Load(s.base, axes), origin=s.origin)
