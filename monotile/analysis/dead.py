"""The constant value of an expression where some of its axis is dead: beyond a bound that a comparison gives, or where its operands are
dead.

Dead values are assumed not to be NaN: 0 times a dead element is 0, and so are results computed from that. So a NaN, or an infinity, in a
dead slot is not propagated (docs/language.md). Masks that add the lowest number of a type are treated like those that add -inf: scores
are small relative to it, so its exponential is 0 wherever a row has a live key.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import msgspec

from monotile.analysis.affine import Affine
from monotile.analysis.index_ranges import negative_where
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Symbolic,
    SymbolicNumber,
    Unary,
    add,
    binary,
    idx,
    loads,
    mul,
    walk,
)

Value = bool | int | float
Given = Callable[[Expr], Value | None]  # the value of a subexpression, where that is known

LOW = -3e4  # numbers up to this, which is above the lowest float16, are not scores but masks

IDENTITY: dict[str, Value] = {
    "sum": 0,
    "prod": 1,
    "max": -math.inf,
    "min": math.inf,
    "any": False,
    "all": True,
}


class Side(msgspec.Struct, frozen=True):
    """A bound along `axis`: `term` is false before at / by, rounded down; for an end, from there on. at: a sum that does not depend on
    the axis."""

    axis: Axis
    term: Expr
    at: Affine
    by: int
    end: bool


def sides(e: Expr, axis: Axis) -> Iterator[Side]:
    """The comparisons in `e` that bound `axis` by values known only during the call."""
    for term in dict.fromkeys(walk(e)):
        side = side_of(term, axis)
        if side is not None and any(loads(x) for x, _ in side.at.terms):
            yield side


def side_of(term: Expr, axis: Axis) -> Side | None:
    """The comparison `term` as a bound of `axis`."""
    match term:
        case Binary("lt" | "le" | "gt" | "ge" as op, a, b) if a.dtype is DType.I64:
            below = negative_where(op, a, b)
            step = below.coefficient(axis)
            rest = below + Affine(((axis, -step),)) if step else below
            if not step or rest.mentions(axis):
                return None
            end, by = step > 0, abs(step)
            # by * axis < -rest, or by * axis > rest
            at = rest.scale(-1) + Affine((), by - 1) if end else rest + Affine((), by)
            return Side(axis, term, at, by, end)
        case _:
            return None


def clamped(s: Side, low: int, high: int) -> Expr:
    """The position of the bound, clamped to [low, high], whatever the values of its atoms: nothing wraps."""
    total: Expr = idx(0)
    for atom, coefficient in s.at.terms:
        total = add(mul(atom, idx(coefficient)), total)
    low_end, high_end = (idx(x * s.by - s.at.constant) for x in (low, high))
    inside = binary("max", binary("min", total, high_end), low_end)
    return binary("floordiv", add(inside, idx(s.at.constant)), idx(s.by))


def value_where(e: Expr, given: Given) -> Value | None:
    """The constant value of `e` where `given` holds; None where it is not constant."""
    found = given(e)
    if found is not None:
        return found
    match e:
        case Const(Symbolic() | SymbolicNumber()):
            return None
        case Const() if e.dtype.is_float8:
            return None
        case Const(value):
            return (
                float(value) if e.dtype.is_float else value if not isinstance(value, str) else None
            )
        case Select(cond, then, otherwise):
            taken = value_where(cond, given)
            if taken is not None:
                return value_where(then if taken else otherwise, given)
            a, b = value_where(then, given), value_where(otherwise, given)
            return a if a == b else None
        case Cast(x, dtype):
            inner = value_where(x, given)
            return None if inner is None else converted(inner, dtype)
        case Unary(op, x):
            inner = value_where(x, given)
            return None if inner is None else _unary(op, inner, e.dtype)
        case Binary(op, a, b):
            return _binary(op, value_where(a, given), value_where(b, given))
        case Load() | Axis():
            return None


def is_low(x: Value | None) -> bool:
    """Whether it is a finite mask value: negligible only relative to a live term."""
    return x is not None and -math.inf < x <= LOW


def left_out(combiner: str | None, body: Expr, value: Value | None) -> bool:
    """Whether terms of that value do not change the result, as long as one term is left."""
    if value is None or combiner is None or combiner not in IDENTITY:
        return False
    if value == IDENTITY[combiner] or (combiner == "max" and is_low(value)):
        return True
    match body:
        case Binary("max" | "min" as op, x, y) if op == combiner:
            return any(isinstance(s, Const) and float(s.value) == value for s in (x, y))
        case _:
            return False


def alone(e: Expr, terms: Sequence[Expr]) -> bool:
    """Whether the condition of each select in `e` that depends on `terms` depends on these alone."""
    choices = [x.cond for x in walk(e) if isinstance(x, Select)]
    own = [c for c in choices if any(t in terms for t in walk(c))]
    return all(value_where(c, lambda x: True if x in terms else None) is True for c in own)


def combined(combiner: str, value: Value) -> Value | None:
    """The result of a reduction whose terms all have that value."""
    if combiner in ("max", "min", "any", "all") or value == IDENTITY.get(combiner):
        return value
    return 0 if value == 0 else None


def converted(x: Value, dtype: DType) -> Value | None:
    """As a value of `dtype`, where that does not round it."""
    if dtype is DType.BOOL:
        return bool(x)
    if dtype.is_float8:  # not each has a zero, a sign, infinities
        return None
    if dtype.is_float:
        return float(x) if x == 0 or math.isinf(x) or is_low(x) else None
    return None if math.isinf(x) else int(x) if x == int(x) else None


def _unary(op: str, x: Value, dtype: DType) -> Value | None:
    match op:
        case "not" if dtype is DType.BOOL:
            return not x
        case "neg":
            return -x
        case "tf32" | "is_tf32" | "ascends":
            return x
        case "exp" | "exp2" if x <= LOW:
            return 0.0
        case "isnan":
            return False
        case _:
            return None


def _binary(op: str, a: Value | None, b: Value | None) -> Value | None:
    match op:
        case "and" | "or":
            return _logical(a, b, decides=op == "or")
        case "mul" if a == 0 or b == 0:
            return 0 if isinstance(a, int) or isinstance(b, int) else 0.0
        case "div" if a == 0 and b != 0:
            return 0.0
        case "add" | "sub" if (a is None) != (b is None):
            return _beside(op, a, b)
        case _:
            return None if a is None or b is None else _folded(op, a, b)


def _beside(op: str, a: Value | None, b: Value | None) -> Value | None:
    """A sum, or difference, of which one side is known."""
    known = a if a is not None else b
    assert known is not None
    if op == "sub" and a is None:
        return -known if math.isinf(known) else None
    return known if math.isinf(known) or is_low(known) else None


def _logical(a: Value | None, b: Value | None, *, decides: bool) -> bool | None:
    """decides: the value of either side that determines the result."""
    if decides in (a, b):
        return decides
    return None if a is None or b is None else not decides


def _folded(op: str, a: Value, b: Value) -> Value | None:
    """Infinities and comparisons; nothing that would round."""
    match op:
        case "max" | "min":
            return max(a, b) if op == "max" else min(a, b)
        case "eq" | "ne":
            return (a == b) == (op == "eq")
        case "lt" | "le":
            return a < b if op == "lt" else a <= b
        case "gt" | "ge":
            return a > b if op == "gt" else a >= b
        case "mul" | "div" if math.isinf(a) and not math.isinf(b) and b != 0:
            return a if b > 0 else -a
        case "add" | "sub" if (math.isinf(a) or is_low(a)) and -LOW > b > LOW:
            return a
        case "mul" | "div" if is_low(a) and 0 < b < math.inf:
            x = a * b if op == "mul" else a / b
            return x if is_low(x) else None
        case "add" | "sub" if math.isinf(b) and not math.isinf(a):
            return b if op == "add" else -b
        case _:
            return None
