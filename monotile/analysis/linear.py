"""Linear normal form of index expressions: a sum of coefficient times atom, plus a constant."""

from typing import NamedTuple

from monotile.ir.dtype import DType
from monotile.ir.expr import Binary, Const, Expr, Unary, add, idx, mul, sub


class Linear(NamedTuple):
    """sum(coefficient * atom) + constant, in int64. An atom is not a sum, a literal or a multiple."""

    terms: tuple[tuple[int, Expr], ...]
    constant: int


def linear(e: Expr) -> Linear:
    """`e` (int64) as a sum, each atom once, in order of appearance."""
    terms: dict[Expr, int] = {}
    constant = 0
    stack: list[tuple[int, Expr]] = [(1, e)]
    while stack:
        factor, node = stack.pop()
        match node:
            case Const(value):
                constant += factor * int(value)
            case Binary("add", a, b):
                stack += [(factor, b), (factor, a)]
            case Binary("sub", a, b):
                stack += [(-factor, b), (factor, a)]
            case Binary("mul", a, Const(value)):
                stack.append((factor * int(value), a))
            case Binary("mul", Const(value), b):
                stack.append((factor * int(value), b))
            case Unary("neg", x):
                stack.append((-factor, x))
            case _:
                terms[node] = terms.get(node, 0) + factor
    return Linear(tuple((c, atom) for atom, c in terms.items() if c), constant)


def total(terms: tuple[tuple[int, Expr], ...], rest: Expr) -> Expr:
    """The expression sum(coefficient * atom) + rest."""
    acc: Expr | None = None
    for factor, atom in terms:
        if acc is None:
            acc = mul(atom, idx(factor))
        elif factor < 0:
            acc = sub(acc, mul(atom, idx(-factor)))
        else:
            acc = add(acc, mul(atom, idx(factor)))
    if acc is None:
        return rest
    if isinstance(rest, Const) and isinstance(rest.value, int) and rest.value < 0:
        return sub(acc, idx(-rest.value))
    return add(acc, rest)


def constant_of(e: Expr) -> int | None:
    """The value of an int64 literal; None for anything else."""
    if isinstance(e, Const) and e.dtype is DType.I64:
        return int(e.value)
    return None
