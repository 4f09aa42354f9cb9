"""Dead-code elimination: of statements, carried and stacked values, branch results and weights."""

import msgspec

from monotile.ir.expr import Expr, loads
from monotile.ir.program import Branch, Compute, Loop, Program, Scatter, Statement, used
from monotile.transform.rewrite import Body, same


def eliminate_dead_code(program: Program) -> Program:
    """`program` without anything on which no output depends. Its inputs stay: they are its calling convention."""
    live = {t.name for t in program.outputs}
    body = _body(program.body, live)
    kept = set(program.states)
    weights = tuple(
        w
        for w in program.weights
        if w.tensor.name in live or not kept.isdisjoint((*w.parts, w.tensor.name))
    )
    if same(body, program.body) and len(weights) == len(program.weights):
        return program
    return msgspec.structs.replace(program, body=body, weights=weights)


def _body(body: Body, live: set[str]) -> Body:
    """The statements that define `live` names; the names that they read are added to `live`."""
    kept: list[Statement] = []
    for s in reversed(body):
        match s:
            case Compute():
                if s.out.name in live:
                    live.update(t.name for t in used(s))
                    kept.append(s)
            case Scatter():
                if s.out.name in live:
                    live.add(s.base.name)
                    for e in (*s.index, s.value):
                        _read(e, live)
                    kept.append(s)
            case Loop():
                if any(x.out.name in live for x in (*s.carried, *s.stacked)):
                    kept.append(_loop(s, live))
            case Branch():
                if any(o.out.name in live for o in s.outs):
                    kept.append(_branch(s, live))
    return tuple(reversed(kept))


def _read(e: Expr, live: set[str]) -> None:
    live.update(x.tensor.name for x in loads(e))


def _loop(s: Loop, live: set[str]) -> Loop:
    """`s` with only the carries and stacks that are used after it, or on which those depend."""
    needed = {c.out.name for c in s.carried if c.out.name in live or c.result == s.predicate}
    stacked = tuple(k for k in s.stacked if k.out.name in live)
    while True:
        inner = {c.result.name for c in s.carried if c.out.name in needed}
        inner.update(k.value.name for k in stacked)
        body = _body(s.body, inner)
        more = {c.out.name for c in s.carried if c.param.name in inner} - needed
        if not more:
            break
        needed |= more
    carried = tuple(c for c in s.carried if c.out.name in needed)
    live.update(inner)
    live.update(c.init.name for c in carried)
    live.update(t.name for t in (s.count,) if t is not None)
    kept = len(carried) + len(stacked) == len(s.carried) + len(s.stacked)
    if kept and same(body, s.body):
        return s
    return msgspec.structs.replace(s, carried=carried, stacked=stacked, body=body)


def _branch(s: Branch, live: set[str]) -> Branch:
    outs = tuple(o for o in s.outs if o.out.name in live)
    then_live, otherwise_live = {o.then.name for o in outs}, {o.otherwise.name for o in outs}
    then, otherwise = _body(s.then, then_live), _body(s.otherwise, otherwise_live)
    live.update(then_live, otherwise_live, {s.predicate.name})
    if len(outs) == len(s.outs) and same(then, s.then) and same(otherwise, s.otherwise):
        return s
    return msgspec.structs.replace(s, outs=outs, then=then, otherwise=otherwise)
