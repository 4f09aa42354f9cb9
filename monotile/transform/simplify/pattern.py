"""Patterns over scalar expressions, so that algebra can be written as a table of (pattern, result)."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from monotile.ir.dtype import DType
from monotile.ir.expr import Binary, Cast, Const, Expr, Select, Unary, children, const

Bindings = Mapping[str, Expr]
Step = Callable[[Expr], Expr]


class Var(NamedTuple):
    """Matches any expression, the same one for equal names. With `literal`, only a Const."""

    name: str
    literal: bool = False


class Op(NamedTuple):
    """A node: the `op` of a Unary or Binary, or "select". In a result it is constructed."""

    op: str
    args: "tuple[Pattern, ...]"


# A number matches a Const of that value with the same sign of zero; bool only matches bool.
Pattern = Var | Op | bool | int | float


def op(name: str, *args: Pattern) -> Op:
    return Op(name, args)


class Rule(NamedTuple):
    """Rewrites `pattern` to `result` if the type of the root's operands is of `kind` and `when` holds.

    A number in the result has the type of the root. A result that is a function is called with the bindings.
    """

    pattern: Op
    result: Pattern | Callable[[Bindings], Expr]
    kind: Callable[[DType], bool] = lambda _: True
    when: Callable[[Bindings], bool] = lambda _: True


def _name(e: Expr) -> str:
    match e:
        case Unary(op) | Binary(op):
            return op
        case Select():
            return "select"
        case _:
            return ""


def _equal(e: Expr, value: bool | int | float) -> bool:
    if not isinstance(e, Const) or isinstance(e.value, str):
        return False
    if isinstance(value, bool) or e.dtype is DType.BOOL:
        return isinstance(value, bool) and e.value is value
    return e.value == value and (
        not e.dtype.is_float or math.copysign(1, e.value) == math.copysign(1, value)
    )


def _match(pattern: Pattern, e: Expr, found: dict[str, Expr]) -> bool:
    match pattern:
        case Var(name, literal):
            if literal and not isinstance(e, Const):
                return False
            return found.setdefault(name, e) == e
        case Op(op, args):
            inner = children(e)
            return (
                _name(e) == op
                and len(inner) == len(args)
                and all(_match(p, c, found) for p, c in zip(args, inner, strict=True))
            )
        case _:
            return _equal(e, pattern)


def _build(result: Pattern, found: Bindings, dtype: DType, step: Step) -> Expr:
    match result:
        case Var(name):
            return found[name]
        case Op(op, args):
            parts: list[Any] = [_build(a, found, dtype, step) for a in args]
            if op == "select":
                return step(Select(*parts))
            return step(Unary(op, *parts) if len(parts) == 1 else Binary(op, *parts))
        case _:
            return const(result, dtype)


class Table:
    """Rules indexed by the operation at their root; the first match applies."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._by_root: dict[str, list[Rule]] = {}
        for rule in rules:
            self._by_root.setdefault(rule.pattern.op, []).append(rule)

    def apply(self, e: Expr, step: Step) -> Expr | None:
        """The rewritten `e`, or None if no rule matches. New nodes are passed to `step`."""
        for rule in self._by_root.get(_name(e), ()):
            found: dict[str, Expr] = {}
            operand = children(e)[-1].dtype
            if rule.kind(operand) and _match(rule.pattern, e, found) and rule.when(found):
                if callable(rule.result):
                    return step(rule.result(found))
                return _build(rule.result, found, e.dtype, step)
        return None


def cast_from(e: Expr, dtype: DType) -> Expr | None:
    """x, where `e` is Cast(x) and x is of `dtype`."""
    return e.x if isinstance(e, Cast) and e.x.dtype is dtype else None
