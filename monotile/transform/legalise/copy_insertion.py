"""Copy insertion: gives every result a separate buffer, as the scheduler and the emitters require.

Afterwards each `Carry.result` and `Stack.value` is defined by a statement of its loop's own body, each result of a Branch by one of that
side, and each output of the Program by a statement. A tensor is the result of at most one carry and appears among the outputs once. A
tensor defined by a Loop or Branch is at most one of these results; one of a Loop that may end early is none, since its buffer is known
only during the call. No carry starts from a weight in several parts, which has no single address, and none of a Loop that may end early
from a state's old value. Where that does not hold, a copy is inserted.
"""

import msgspec

from monotile.analysis.in_place import carried_in_place
from monotile.ir.expr import Load, Tensor
from monotile.ir.program import (
    Branch,
    BranchOut,
    Carry,
    Compute,
    Loop,
    Program,
    Scatter,
    Stack,
    Statement,
    compute,
    defined,
    statements,
    updates,
)
from monotile.transform.names import Names
from monotile.transform.rewrite import Body, map_bodies, same


def insert_copies(program: Program) -> Program:
    """`program` with copies of results that share a buffer."""
    taken = Names(program)
    body = _begun(program, taken)
    body = tuple(_statement(s, taken) for s in body)
    copies = _Copies(body, taken)
    count = len(program.results)
    # States first: if a new value is also a result, the result is copied.
    states = [copies.own(t) for t in program.outputs[count:]]
    outputs = (*(copies.own(t) for t in program.results), *states)
    body = (*body, *copies.made)
    if same(body, program.body):
        return program
    return msgspec.structs.replace(program, body=body, outputs=outputs)


def _begun(program: Program, taken: Names) -> Body:
    """The body with copies of initial values that no loop may have: weights in several parts. A loop that may end early may not start
    from the old value of a state either, which would be its result if there is no iteration, and be read after the state has its new
    value."""
    parted = {w.tensor.name: w.tensor for w in program.weights if len(w.parts) > 1}
    old = {t.name: t for u in updates(program) for t in u.old}
    copies = _Copies((), taken)
    found: dict[str, Tensor] = {}

    def wanted(s: Loop) -> dict[str, Tensor]:
        refused = parted | old if s.ends_early else parted
        begun = [c for c in s.carried if c not in carried_in_place(s)]
        return {c.init.name: refused[c.init.name] for c in begun if c.init.name in refused}

    for s in statements(program.body):
        if isinstance(s, Loop):
            found |= {n: copies.own(t) for n, t in sorted(wanted(s).items()) if n not in found}

    def replace(s: Statement) -> Statement:
        s = map_bodies(s, lambda inner: tuple(replace(x) for x in inner))
        if not isinstance(s, Loop) or not (here := wanted(s)):
            return s
        new = [
            msgspec.structs.replace(c, init=found[c.init.name]) if c.init.name in here else c
            for c in s.carried
        ]
        return msgspec.structs.replace(s, carried=tuple(new))

    return (*copies.made, *map(replace, program.body)) if found else program.body


def _placeable(s: Statement) -> tuple[Tensor, ...]:
    """The tensors that `s` defines and that can be placed anywhere."""
    if isinstance(s, Loop) and s.ends_early:
        return tuple(x.out for x in (*carried_in_place(s), *s.stacked))
    return defined(s)


class _Copies:
    """Provides for each requested tensor a definition in `body` that is given out once."""

    def __init__(self, body: Body, taken: Names) -> None:
        self.origin = {t.name: s.origin for s in body for t in _placeable(s)}
        self.computed = {s.out.name for s in body if isinstance(s, (Compute, Scatter))}
        self.given: set[str] = set()
        self.taken = taken
        self.made: list[Statement] = []

    def own(self, t: Tensor) -> Tensor:
        if t.name in self.origin and t.name not in self.given:
            self.given.add(t.name)
            return t
        out = Tensor(self.taken.fresh(f"{t.name}_copy"), t.shape, t.dtype)
        origin = self.origin.get(t.name, "")
        self.made.append(compute(out, lambda *axes: Load(t, axes), origin=origin))
        return out

    def local(self, t: Tensor) -> Tensor:
        """As `own`, but the result of a Compute or Scatter may be used twice: it is then written twice."""
        return t if t.name in self.computed else self.own(t)


def _statement(s: Statement, taken: Names) -> Statement:
    match s:
        case Compute() | Scatter():
            return s
        case Loop():
            return _loop(s, taken)
        case Branch():
            return _branch(s, taken)


def _loop(s: Loop, taken: Names) -> Loop:
    inner = tuple(_statement(x, taken) for x in s.body)
    copies = _Copies(inner, taken)
    results = [copies.own(c.result) for c in s.carried]
    values = [copies.local(k.value) for k in s.stacked]
    body = (*inner, *copies.made)
    if same(body, s.body):
        return s
    renamed = dict(zip((c.result for c in s.carried), results, strict=True))
    return msgspec.structs.replace(
        s,
        body=body,
        carried=tuple(
            Carry(c.init, c.param, r, c.out) for c, r in zip(s.carried, results, strict=True)
        ),
        stacked=tuple(Stack(v, k.out) for k, v in zip(s.stacked, values, strict=True)),
        predicate=None if s.predicate is None else renamed[s.predicate],
    )


def _branch(s: Branch, taken: Names) -> Branch:
    then = tuple(_statement(x, taken) for x in s.then)
    otherwise = tuple(_statement(x, taken) for x in s.otherwise)
    left, right = _Copies(then, taken), _Copies(otherwise, taken)
    outs = tuple(BranchOut(left.own(o.then), right.own(o.otherwise), o.out) for o in s.outs)
    then, otherwise = (*then, *left.made), (*otherwise, *right.made)
    if same(then, s.then) and same(otherwise, s.otherwise):
        return s
    return msgspec.structs.replace(s, then=then, otherwise=otherwise, outs=outs)
