"""Traversals of the statements of a Program. A rewrite that changes nothing returns the same object."""

from collections.abc import Callable

import msgspec

from monotile.ir.expr import Expr, Tensor
from monotile.ir.program import Branch, Compute, Loop, Program, Scatter, Statement

Body = tuple[Statement, ...]


def same(a: Body, b: Body) -> bool:
    """Whether two statement lists contain the same objects."""
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def with_body(program: Program, body: Body) -> Program:
    return program if same(body, program.body) else msgspec.structs.replace(program, body=body)


def map_bodies(s: Statement, f: Callable[[Body], Body]) -> Statement:
    """`s` with `f` applied to its bodies."""
    match s:
        case Compute() | Scatter():
            return s
        case Loop():
            body = f(s.body)
            return s if same(body, s.body) else msgspec.structs.replace(s, body=body)
        case Branch():
            then, otherwise = f(s.then), f(s.otherwise)
            if same(then, s.then) and same(otherwise, s.otherwise):
                return s
            return msgspec.structs.replace(s, then=then, otherwise=otherwise)


def map_program(program: Program, f: Callable[[Statement], Statement]) -> Program:
    """`program` with `f` applied to every statement, innermost first."""

    def go(body: Body) -> Body:
        return tuple(f(map_bodies(s, go)) for s in body)

    return with_body(program, go(program.body))


def map_exprs(s: Statement, f: Callable[[Expr], Expr]) -> Statement:
    """`s` with `f` applied to its own expressions, not to those of its bodies."""
    match s:
        case Compute():
            body = f(s.body)
            return s if body is s.body else msgspec.structs.replace(s, body=body)
        case Scatter():
            index, value = tuple(f(e) for e in s.index), f(s.value)
            if value is s.value and all(a is b for a, b in zip(index, s.index, strict=True)):
                return s
            return msgspec.structs.replace(s, index=index, value=value)
        case Loop() | Branch():
            return s


def map_carried(s: Loop, f: Callable[[Tensor], Tensor]) -> Loop:
    """`s` with `f` applied to the tensors that it carries and stacks."""
    carried = tuple(
        msgspec.structs.replace(
            c, init=f(c.init), param=f(c.param), result=f(c.result), out=f(c.out)
        )
        for c in s.carried
    )
    stacked = tuple(msgspec.structs.replace(k, value=f(k.value), out=f(k.out)) for k in s.stacked)
    if carried == s.carried and stacked == s.stacked:
        return s
    return msgspec.structs.replace(s, carried=carried, stacked=stacked)
