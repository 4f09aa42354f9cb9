"""Decoding in pairs of 16-bit floats: expressions that are exact in these, except for one last rounding, which is that of the expression."""

import math
from dataclasses import dataclass

from monotile.analysis.codes import Codes
from monotile.ir.dtype import DType
from monotile.ir.expr import Binary, Cast, Const, Expr, Unary, loads, walk
from monotile.ir.intervals import Interval, interval, type_range

WHOLE = {DType.F16: 2048, DType.BF16: 256}  # integers up to which each is exact
HOLDS = {  # types all of whose numbers each has
    DType.F16: {DType.F16, DType.F8E4M3, DType.F8E5M2},
    DType.BF16: {DType.BF16, DType.F8E4M3, DType.F8E5M2, DType.F8E8M0},
}


@dataclass(frozen=True, slots=True)
class Code:
    """The value of the codes."""


@dataclass(frozen=True, slots=True)
class Both:
    """A value that both elements of a pair share."""

    value: Expr


@dataclass(frozen=True, slots=True)
class Pair:
    """An operation on pairs. op: "add", "sub", "mul", "fma"."""

    op: str
    operands: "tuple[Operand, ...]"


Operand = Code | Both | Pair


def in_pairs(factor: Expr, codes: Codes) -> Operand | None:
    """`factor` as operations on pairs of its own type; None if that would round differently."""
    match factor:
        case Cast(x, dtype) if dtype in WHOLE:
            found = _Pairs(codes, dtype)
            return found.rounded(x) if x.dtype is DType.F32 else found.exact(factor)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class _Pairs:
    codes: Codes
    dtype: DType

    def rounded(self, e: Expr) -> Operand | None:
        """`e`, a float32, as an operation that rounds once to the type."""
        match e:
            case Binary("mul", a, b):
                return self._all("mul", a, b)
            case Binary("add", Binary("mul", a, b), c) | Binary("add", c, Binary("mul", a, b)):
                return self._all("fma", a, b, c)
            case Binary("sub", Binary("mul", a, b), c):
                return self._all("fma", a, b, Unary("neg", c))
            case Binary("add" | "sub" as op, a, b):
                return self._all(op, a, b)
            case _:
                return self.exact(e)

    def exact(self, e: Expr) -> Operand | None:
        """`e` as an operand, if the type represents it exactly."""
        x = _within(e)
        if x == self.codes.value:
            return Code() if self.codes.small_float or self._whole(e) else None
        if not loads(e):
            return Both(e) if isinstance(e, Const) and _representable(e, self.dtype) else None
        match x:
            case Binary("add" | "sub" as op, a, b) if self._whole(e):
                return self._all(op, *(Cast(y, DType.F32) if y.dtype.is_int else y for y in (a, b)))
            case Unary("neg", y):
                inner = self.exact(y)
                return Both(e) if isinstance(inner, Both) else None
            case _:
                pass
        if any(part == self.codes.value for part in walk(e)):
            return None
        held = e.x if isinstance(e, Cast) and e.dtype is DType.F32 else e
        return Both(e) if held.dtype in HOLDS[self.dtype] or self._whole(e) else None

    def _all(self, op: str, *operands: Expr) -> Pair | None:
        found = tuple(x for e in operands if (x := self.exact(e)) is not None)
        return Pair(op, found) if len(found) == len(operands) else None

    def _whole(self, e: Expr) -> bool:
        """Whether `e` is an integer that the type represents."""
        span = self._span(e)
        most = WHOLE[self.dtype]
        return span is not None and span.inside(-most, most)

    def _span(self, e: Expr) -> Interval | None:
        if e == self.codes.value and self.codes.small_float is None:
            ends = (0, self.codes.scale * ((1 << self.codes.bits) - 1))
            return Interval(min(ends) + self.codes.offset, max(ends) + self.codes.offset)
        match e:
            case Cast(x, dtype) if dtype.is_float:
                return self._span(x)
            case Binary("add" | "sub" as op, a, b):
                left, right = self._span(a), self._span(b)
                if left is None or right is None:
                    return None
                low = left.lo + right.lo if op == "add" else left.lo - right.hi
                high = left.hi + right.hi if op == "add" else left.hi - right.lo
                own = type_range(e.dtype)
                fits = e.dtype.is_float or (own is not None and own.lo <= low and high <= own.hi)
                return Interval(low, high) if fits else None
            case Const(value) if math.isfinite(float(value)) and float(value).is_integer():
                return Interval(int(float(value)), int(float(value)))
            case _:
                return interval(e) if e.dtype.is_int else None


def _within(e: Expr) -> Expr:
    """`e` without casts to floats."""
    while isinstance(e, Cast) and e.dtype.is_float:
        e = e.x
    return e


def _representable(c: Const, dtype: DType) -> bool:
    value = float(c.value)
    return float(dtype.numpy.type(value)) == value
