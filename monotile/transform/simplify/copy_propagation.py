"""Copy propagation: whole uses of a copy become whole uses of its source.

Loads of a copy are inlined by `inline.py`; this pass is for outputs, carried and stacked values, results of
branches and bases of Scatters.
"""

from collections.abc import Mapping, Set

import msgspec

from monotile.ir.expr import Const, Load, Tensor
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
)
from monotile.transform.rewrite import Body, same

Sources = dict[str, Tensor]


def propagate_copies(program: Program) -> Program:
    """`program` without whole uses of copies; `eliminate_dead_code` then drops those that no Load reads."""
    sources: Sources = {}
    changing = program.changing
    body = _body(program.body, sources, changing)
    outputs = tuple(_of(t, sources) for t in program.outputs)
    if same(body, program.body) and outputs == program.outputs:
        return program
    return msgspec.structs.replace(program, body=body, outputs=outputs)


def _copied(s: Compute) -> Tensor | None:
    """The tensor that `s` repeats element by element."""
    if s.combiner is not None or not isinstance(s.body, Load):
        return None
    source, index = s.body.tensor, s.body.index
    if (source.shape, source.dtype) != (s.out.shape, s.out.dtype):
        return None
    straight = all(
        i == a or (a.extent == 1 and isinstance(i, Const))
        for i, a in zip(index, s.axes, strict=True)
    )
    return source if straight else None


def _of(t: Tensor, sources: Mapping[str, Tensor]) -> Tensor:
    return sources.get(t.name, t)


def _body(body: Body, sources: Sources, changing: Set[str]) -> Body:
    """`body` with its whole uses replaced. Its copies are added to `sources`, except copies of tensors that are `changing` meanwhile."""
    return tuple(_statement(s, sources, changing) for s in body)


def _statement(s: Statement, sources: Sources, changing: Set[str]) -> Statement:
    match s:
        case Compute():
            source = _copied(s)
            if source is not None and source.name not in changing:
                sources[s.out.name] = _of(source, sources)
            return s
        case Scatter():
            base = _of(s.base, sources)
            return s if base is s.base else msgspec.structs.replace(s, base=base)
        case Loop():
            inner = dict(sources)
            body = _body(s.body, inner, changing)
            predicate = None if s.predicate is None else _of(s.predicate, inner)
            new = Loop(
                s.axis,
                tuple(
                    Carry(_of(c.init, sources), c.param, _of(c.result, inner), c.out)
                    for c in s.carried
                ),
                tuple(Stack(_of(k.value, inner), k.out) for k in s.stacked),
                body,
                None if s.count is None else _of(s.count, sources),
                predicate,
                s.origin,
            )
        case Branch():
            left, right = dict(sources), dict(sources)
            then = _body(s.then, left, changing)
            otherwise = _body(s.otherwise, right, changing)
            new = Branch(
                _of(s.predicate, sources),
                then,
                otherwise,
                tuple(BranchOut(_of(o.then, left), _of(o.otherwise, right), o.out) for o in s.outs),
                s.origin,
            )
    return s if new == s else new
