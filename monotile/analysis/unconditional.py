"""The unconditional and the conditional Loads of an expression."""

from collections.abc import Iterator, Set

from monotile.ir.dtype import DType
from monotile.ir.expr import NEGATED, Binary, Const, Expr, Load, Select, Unary, children, rebuild

TRUE = Const(True, DType.BOOL)


def unconditional(e: Expr) -> Iterator[Load]:
    """The Loads that are evaluated whenever `e` is, except those inside indices of others."""
    return (x for x, when in conditional(e) if when == TRUE)


def executed(e: Expr) -> Iterator[Load]:
    """The same with those inside indices, each before the Load that it is for."""
    for x in unconditional(e):
        for i in x.index:
            yield from executed(i)
        yield x


def conditional(e: Expr, when: Expr = TRUE) -> Iterator[tuple[Load, Expr]]:
    """The Loads of `e`, except those inside indices of others, each with the condition under which it is evaluated."""
    match e:
        case Load():
            yield e, when
        case Select(cond, then, otherwise):
            yield from conditional(cond, when)
            yield from conditional(then, both(when, cond))
            yield from conditional(otherwise, both(when, Unary("not", cond)))
        case Binary("and", a, b):
            yield from conditional(a, when)
            yield from conditional(b, both(when, a))
        case Binary("or", a, b):
            yield from conditional(a, when)
            yield from conditional(b, both(when, Unary("not", a)))
        case _:
            for child in children(e):
                yield from conditional(child, when)


def both(a: Expr, b: Expr) -> Expr:
    return b if a == TRUE else a if b == TRUE else Binary("and", a, b)


def either(a: Expr, b: Expr) -> Expr:
    return a if a == b else TRUE if TRUE in (a, b) else Binary("or", a, b)


def negated(e: Expr) -> Expr:
    """The negation of `e`: for comparisons of indices, the opposite comparison."""
    match e:
        case Binary(op, a, b) if op in NEGATED and a.dtype is DType.I64:
            return Binary(NEGATED[op], a, b)
        case _:
            return Unary("not", e)


def holding(e: Expr, true: Set[Expr]) -> Expr:
    """`e` where the conditions `true` hold."""
    return TRUE if e in true else rebuild(e, lambda x: holding(x, true))
