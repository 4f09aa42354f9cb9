"""Scalar expressions as lowering functions write them: literals take the type of the other side."""

from collections.abc import Sequence

from monotile.ir.dtype import DType
from monotile.ir.expr import Binary, Const, Expr, Select, Unary, binary, const

Term = Expr | int | float


def _pair(a: Term, b: Term) -> tuple[Expr, Expr]:
    if isinstance(a, int | float):
        if isinstance(b, int | float):
            raise TypeError("one side must be an expression")
        return const(a, b.dtype), b
    return a, const(b, a.dtype) if isinstance(b, int | float) else b


def op(name: str, a: Term, b: Term) -> Expr:
    """Binary, a number taking the type of the other side."""
    x, y = _pair(a, b)
    return binary(name, x, y)


def add(a: Term, b: Term) -> Expr:
    return op("add", a, b)


def sub(a: Term, b: Term) -> Expr:
    return op("sub", a, b)


def mul(a: Term, b: Term) -> Expr:
    return op("mul", a, b)


def div(a: Term, b: Term) -> Expr:
    """The quotient of two floats."""
    return op("div", a, b)


def floordiv(a: Term, b: Term) -> Expr:
    return op("floordiv", a, b)


def mod(a: Term, b: Term) -> Expr:
    return op("mod", a, b)


def maximum(a: Term, b: Term) -> Expr:
    return op("max", a, b)


def minimum(a: Term, b: Term) -> Expr:
    return op("min", a, b)


def eq(a: Term, b: Term) -> Expr:
    return op("eq", a, b)


def ne(a: Term, b: Term) -> Expr:
    return op("ne", a, b)


def lt(a: Term, b: Term) -> Expr:
    return op("lt", a, b)


def le(a: Term, b: Term) -> Expr:
    return op("le", a, b)


def gt(a: Term, b: Term) -> Expr:
    return op("gt", a, b)


def ge(a: Term, b: Term) -> Expr:
    return op("ge", a, b)


def both(*terms: Expr) -> Expr:
    """All of the conditions, evaluated from the left; true if there are none."""
    if not terms:
        return Const(True, DType.BOOL)
    out = terms[0]
    for t in terms[1:]:
        out = Binary("and", out, t)
    return out


def either(a: Expr, b: Expr) -> Expr:
    return Binary("or", a, b)


def negation(a: Expr) -> Expr:
    return Unary("not", a)


def select(cond: Expr, then: Term, otherwise: Term) -> Expr:
    t, o = _pair(then, otherwise)
    if isinstance(cond, Const):
        return t if cond.value else o
    return Select(cond, t, o)


def call(name: str, x: Expr) -> Expr:
    """Unary."""
    return Unary(name, x)


def neg(x: Expr) -> Expr:
    return Unary("neg", x)


def exp(x: Expr) -> Expr:
    return Unary("exp", x)


def sigmoid(x: Expr) -> Expr:
    return div(1, add(1, exp(neg(x))))


def tanh(x: Expr) -> Expr:
    return Unary("tanh", x)


def isnan(x: Expr) -> Expr:
    return Unary("isnan", x)


def masked(tests: Sequence[Expr], value: Expr, otherwise: Expr) -> Expr:
    """`value` where all tests hold, else `otherwise`. In a product both factors are masked, so that it stays a product."""
    if not tests:
        return value
    test = both(*tests)
    match value, otherwise:
        case Binary("mul", a, b), Const(0 | 0.0):
            zero = const(0, a.dtype)
            return Binary("mul", Select(test, a, zero), Select(test, b, zero))
        case _:
            return Select(test, value, otherwise)
