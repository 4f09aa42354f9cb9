"""Interval analysis of integer expressions, narrowed by the conditions under which they are evaluated.

Sound, not exact: an interval may be too wide, never too narrow. int64 arithmetic that could wrap gives
the whole range of its type. Conditions are 0 (false) or 1 (true).
"""

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from monotile.ir.dtype import DType
from monotile.ir.expr import (
    COMPARE,
    NEGATED,
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
)
from monotile.ir.reals import span


class Interval(NamedTuple):
    """The integers from lo to hi, both included; empty if lo > hi."""

    lo: int
    hi: int

    def inside(self, lo: int, hi: int) -> bool:
        """Whether every value is between lo and hi, both included."""
        return lo <= self.lo and self.hi <= hi

    def meet(self, other: "Interval") -> "Interval":
        return Interval(max(self.lo, other.lo), min(self.hi, other.hi))

    def join(self, other: "Interval") -> "Interval":
        return Interval(min(self.lo, other.lo), max(self.hi, other.hi))


Facts = Mapping[Expr, Interval]
NOTHING_KNOWN: Facts = {}
Elements = Mapping[str, Interval]
NO_ELEMENTS: Elements = {}
FALSE, TRUE, EITHER = Interval(0, 0), Interval(1, 1), Interval(0, 1)
_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


@functools.cache
def type_range(dtype: DType) -> Interval | None:
    """Every value of an integer type or bool; None for floats."""
    if dtype is DType.BOOL:
        return EITHER
    if not dtype.is_int:
        return None
    info = np.iinfo(dtype.value)
    return Interval(int(info.min), int(info.max))


class Ranges:
    """Intervals of expressions under `facts`, cached. elements: those of a tensor's elements, by its name."""

    def __init__(self, facts: Facts = NOTHING_KNOWN, elements: Elements = NO_ELEMENTS) -> None:
        self.facts, self.elements = facts, elements
        self._known: dict[Expr, Interval | None] = {}
        self._under: dict[tuple[Expr, bool], Ranges] = {}

    def of(self, e: Expr) -> Interval | None:
        """The interval of `e`; None for a float."""
        if e not in self._known:
            self._known[e] = self._bounded(e)
        return self._known[e]

    def truth(self, cond: Expr) -> bool | None:
        """The value of `cond`, if it is certain."""
        match self.of(cond):
            case Interval(1, 1):
                return True
            case Interval(0, 0):
                return False
            case _:
                return None

    def under(self, cond: Expr, value: bool) -> "Ranges":
        """The ranges under `facts` and `cond` being `value`."""
        key = (cond, value)
        if key not in self._under:
            learnt = self.learn(cond, value)
            self._under[key] = Ranges({**self.facts, **learnt}, self.elements)
        return self._under[key]

    def learn(self, cond: Expr, value: bool) -> dict[Expr, Interval]:
        """The additional facts if `cond` is `value`."""
        out: dict[Expr, Interval] = {cond: TRUE if value else FALSE}
        if isinstance(cond, Binary) and cond.op in (
            "eq",
            "ne",
        ):  # negations of each other for floats, too
            out[Binary(NEGATED[cond.op], cond.a, cond.b)] = FALSE if value else TRUE

        def add(new: dict[Expr, Interval]) -> None:
            for e, found in new.items():
                out[e] = found.meet(out[e]) if e in out else found

        match cond:
            case Unary("not", x):
                add(self.learn(x, not value))
            case Binary("and" | "or" as op, a, b) if value == (op == "and"):
                add(self.learn(a, value))
                add(self.under(a, value).learn(b, value))
            case Binary(op, a, b) if op in COMPARE:
                relation = op if value else NEGATED[op]
                ia, ib = self.of(a), self.of(b)
                if ia is not None and ib is not None:
                    if relation == "ne" and ib.lo == ib.hi:
                        add(self._narrow(a, _without(ia, ib.lo)))
                    add(self._narrow(a, _bound(relation, ib)))
                    add(self._narrow(b, _bound(_FLIPPED[relation], ia)))
            case _:
                pass
        return out

    def _bounded(self, e: Expr) -> Interval | None:
        whole = type_range(e.dtype)
        if whole is None:
            return None
        found = self._interval(e, whole)
        if not found.inside(whole.lo, whole.hi):  # it may wrap
            found = whole
        known = self.facts.get(e)
        return found if known is None else found.meet(known)

    def _interval(self, e: Expr, whole: Interval) -> Interval:
        match e:
            case Const(value):
                return Interval(int(value), int(value))
            case Axis(_, extent):
                return Interval(0, max(extent - 1, 0))
            case Load(t, _):
                return self.elements.get(t.name, whole)
            case Cast(x, dtype):
                inner = self.of(x)
                if inner is None:
                    return self._truncated(x, whole)
                if dtype is DType.BOOL:
                    zero = inner.lo <= 0 <= inner.hi
                    return FALSE if inner == FALSE else EITHER if zero else TRUE
                return inner
            case Select(cond, then, otherwise):
                taken = self.truth(cond)
                if taken is not None:
                    return self.of(then if taken else otherwise) or whole
                left = self.under(cond, True).of(then) or whole
                return left.join(self.under(cond, False).of(otherwise) or whole)
            case Unary(op, x):
                inner = self.of(x)
                return whole if inner is None else _unary(op, inner, whole)
            case Binary(op, a, b):
                ia, ib = self.of(a), self.of(b)
                if ia is None or ib is None:
                    return whole
                return _compare(op, ia, ib) if op in COMPARE else _binary(op, ia, ib, whole)

    def _truncated(self, x: Expr, whole: Interval) -> Interval:
        """A floating-point number truncated to an integer."""
        found = None if whole == EITHER else span(x, self.of)
        return whole if found is None else Interval(math.trunc(found[0]), math.trunc(found[1]))

    def _narrow(self, e: Expr, to: Interval) -> dict[Expr, Interval]:
        """The facts about `e` and its operands that follow from its value being in `to`."""
        whole, own = type_range(e.dtype), self.of(e)
        if whole is None or own is None or isinstance(e, Const):
            return {}
        to = to.meet(own)
        out: dict[Expr, Interval] = {e: to}
        if not isinstance(e, Binary):
            return out
        # Inverting an operation is only correct if it cannot wrap.
        x, y = self.of(e.a), self.of(e.b)
        if x is None or y is None:
            return out
        step = y.lo if y.lo == y.hi else None
        match e.op:
            case "add" if _binary("add", x, y, whole).inside(whole.lo, whole.hi):
                out |= self._narrow(e.a, Interval(to.lo - y.hi, to.hi - y.lo))
                out |= self._narrow(e.b, Interval(to.lo - x.hi, to.hi - x.lo))
            case "sub" if _binary("sub", x, y, whole).inside(whole.lo, whole.hi):
                out |= self._narrow(e.a, Interval(to.lo + y.lo, to.hi + y.hi))
                out |= self._narrow(e.b, Interval(x.lo - to.hi, x.hi - to.lo))
            case "mul" if step and step > 0:
                if _binary("mul", x, y, whole).inside(whole.lo, whole.hi):
                    out |= self._narrow(e.a, Interval(-(-to.lo // step), to.hi // step))
            case "floordiv" if step and step > 0:
                out |= self._narrow(e.a, Interval(to.lo * step, to.hi * step + step - 1))
            case _:
                pass
        return out


def interval(e: Expr, facts: Facts = NOTHING_KNOWN) -> Interval | None:
    """The interval of `e` under `facts`; None for a float."""
    return Ranges(facts).of(e)


def truth(e: Expr, facts: Facts = NOTHING_KNOWN) -> bool | None:
    """The value of the condition `e` under `facts`, if it is certain."""
    return Ranges(facts).truth(e)


def learn(cond: Expr, value: bool, facts: Facts = NOTHING_KNOWN) -> dict[Expr, Interval]:
    """The additional facts if `cond` is `value`."""
    return Ranges(facts).learn(cond, value)


def _without(x: Interval, end: int) -> Interval:
    """`x` without one of its ends, if `end` is one and not all of it."""
    if x.lo == x.hi:
        return x
    return Interval(x.lo + (end == x.lo), x.hi - (end == x.hi))


def _unary(op: str, x: Interval, whole: Interval) -> Interval:
    match op:
        case "neg":
            return Interval(-x.hi, -x.lo)
        case "abs":
            low = 0 if x.lo <= 0 <= x.hi else min(abs(x.lo), abs(x.hi))
            return Interval(low, max(abs(x.lo), abs(x.hi)))
        case "not" if whole == EITHER:
            return Interval(1 - x.hi, 1 - x.lo)
        case "not":
            # The bits of a signed integer inverted are -1 - x; of an unsigned one, max - x.
            top = whole.lo + whole.hi
            return Interval(top - x.hi, top - x.lo)
        case _:
            return whole


def _compare(op: str, a: Interval, b: Interval) -> Interval:
    match op:
        case "lt":
            return TRUE if a.hi < b.lo else FALSE if a.lo >= b.hi else EITHER
        case "le":
            return TRUE if a.hi <= b.lo else FALSE if a.lo > b.hi else EITHER
        case "gt":
            return _compare("lt", b, a)
        case "ge":
            return _compare("le", b, a)
        case "eq":
            same = a.lo == a.hi == b.lo == b.hi
            return TRUE if same else FALSE if a.hi < b.lo or b.hi < a.lo else EITHER
        case _:
            equal = _compare("eq", a, b)
            return Interval(1 - equal.hi, 1 - equal.lo)


def _corners(values: list[int]) -> Interval:
    return Interval(min(values), max(values))


def _binary(op: str, a: Interval, b: Interval, whole: Interval) -> Interval:
    match op:
        case "add":
            return Interval(a.lo + b.lo, a.hi + b.hi)
        case "sub":
            return Interval(a.lo - b.hi, a.hi - b.lo)
        case "mul":
            return _corners([x * y for x in a for y in b])
        case "min":
            return Interval(min(a.lo, b.lo), min(a.hi, b.hi))
        case "max":
            return Interval(max(a.lo, b.lo), max(a.hi, b.hi))
        case "floordiv" if b.lo > 0:
            return _corners([x // y for x in a for y in b])
        case "mod" if b.lo > 0:
            if b.lo == b.hi and a.lo // b.lo == a.hi // b.lo:
                return Interval(a.lo % b.lo, a.hi % b.lo)
            return Interval(0, min(b.hi - 1, a.hi) if a.lo >= 0 else b.hi - 1)
        case "truncdiv" | "rem" if a.lo >= 0 and b.lo > 0:
            return _binary("floordiv" if op == "truncdiv" else "mod", a, b, whole)
        case "bitand" if a.lo < 0 <= b.lo:
            return Interval(0, b.hi)
        case "and" | "bitand" if a.lo >= 0 and b.lo >= 0:
            return Interval(1 if a == b == TRUE else 0, min(a.hi, b.hi))
        case "or" | "bitor" | "bitxor" if a.lo >= 0 and b.lo >= 0:
            low = max(a.lo, b.lo) if op != "bitxor" else 0
            return Interval(low, (1 << max(a.hi.bit_length(), b.hi.bit_length())) - 1)
        case "shr" if b.lo >= 0:
            return _corners([x >> y for x in a for y in b])
        case "shl" if a.lo >= 0 and b.lo >= 0 and b.hi < 64:
            return _corners([x << y for x in a for y in b])
        case _:
            return whole


def _bound(relation: str, other: Interval) -> Interval:
    """The values x for which `x relation y` holds for some y in `other`."""
    far = 1 << 80
    match relation:
        case "lt":
            return Interval(-far, other.hi - 1)
        case "le":
            return Interval(-far, other.hi)
        case "gt":
            return Interval(other.lo + 1, far)
        case "ge":
            return Interval(other.lo, far)
        case "eq":
            return other
        case _:
            return Interval(-far, far)
