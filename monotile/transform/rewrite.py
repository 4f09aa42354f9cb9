"""Walks over the statements of a Program. A rewrite that changes nothing gives the same object."""

from collections.abc import Callable

import msgspec

from monotile.ir.expr import Expr, Tensor
from monotile.ir.program import Branch, Compute, Loop, Program, Scatter, Statement

Body = tuple[Statement, ...]


def same(a: Body, b: Body) -> bool:
    """Whether two statement lists hold the same objects."""
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def with_body(program: Program, body: Body) -> Program:
    return program if same(body, program.body) else msgspec.structs.replace(program, body=body)


def map_bodies(s: Statement, f: Callable[[Body], Body]) -> Statement:
    """`s` with `f` applied to the bodies that it holds."""
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
    """`program` with `f` applied to every statement, to those inside a loop before the loop itself."""

    def go(body: Body) -> Body:
        return tuple(f(map_bodies(s, go)) for s in body)

    return with_body(program, go(program.body))


def map_exprs(s: Statement, f: Callable[[Expr], Expr]) -> Statement:
    """`s` with `f` applied to its own expressions, not to those of the bodies that it holds."""
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


def fresh(name: str, taken: set[str]) -> str:
    """A name like `name` that is not in `taken`; it is put there."""
    new, k = name, 0
    while new in taken:
        k += 1
        new = f"{name}_{k}"
    taken.add(new)
    return new


def names_of(program: Program) -> set[str]:
    """The name of every tensor of `program`."""
    names = {t.name for t in program.inputs} | {w.tensor.name for w in program.weights}

    def add(*tensors: Tensor) -> None:
        names.update(t.name for t in tensors)

    def go(body: Body) -> None:
        for s in body:
            match s:
                case Compute() | Scatter():
                    add(s.out)
                case Loop():
                    add(*(t for c in s.carried for t in (c.param, c.out)))
                    add(*(k.out for k in s.stacked))
                    go(s.body)
                case Branch():
                    add(*(o.out for o in s.outs))
                    go(s.then)
                    go(s.otherwise)

    go(program.body)
    return names
