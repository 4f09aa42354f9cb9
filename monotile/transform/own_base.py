"""Scatters update in place: each gets a base that no one else sees.

Afterwards the base of every Scatter is defined by a Compute or Scatter of the same list of statements and is
used nowhere else, that Scatter's own expressions included. The scheduler puts both into the same bytes and
may order statements by what they read and write alone. Where a base is an input, a weight, a carried value,
used again, or made outside the loop that updates it, a copy of it takes its place. The base may also be the old value of
a state that is updated where it lies (`analysis.states`).
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from monotile.analysis.states import scattered
from monotile.ir.expr import Load, Tensor
from monotile.ir.program import (
    Branch,
    Compute,
    Loop,
    Program,
    Scatter,
    Statement,
    compute,
    statements,
    used,
)
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, with_body


def own_base(program: Program) -> Program:
    """`program` with a copy before each Scatter whose base is not its own to overwrite."""
    counts = _uses(program)
    taken = Names(program)
    return with_body(program, _body(program.body, counts, taken, scattered(program)))


def _body(body: Body, counts: Mapping[str, int], taken: Names, states: Mapping[str, str]) -> Body:
    """states: of the Scatters that update a state where it lies, by name, its old value's name."""
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


def _uses(program: Program) -> Counter[str]:
    """How often each tensor is named: loaded, updated, carried, stacked, given out."""
    found = Counter(t.name for t in program.outputs)
    for s in statements(program.body):
        match s:
            case Compute() | Scatter():
                found.update(t.name for t in used(s))
            case Loop():
                found.update(t.name for c in s.carried for t in (c.init, c.result))
                found.update(k.value.name for k in s.stacked)
                found.update(t.name for t in (s.count, s.predicate) if t is not None)
            case Branch():
                found.update([s.predicate.name])
                found.update(t.name for o in s.outs for t in (o.then, o.otherwise))
    return found
