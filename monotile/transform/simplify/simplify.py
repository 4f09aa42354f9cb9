"""Simplifies every scalar expression of a Program: algebra, index algebra, constants, pruned selects.

One bottom-up traversal; conditions above an expression are facts inside it.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from monotile.analysis.contraction import contraction, uncast
from monotile.config import Options
from monotile.ir import scalar
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    COMPARE,
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    axes_of,
    cast,
    children,
    const,
    idx,
    loads,
    map_loads,
    rebuild,
    substitute,
)
from monotile.ir.intervals import NOTHING_KNOWN, Facts, Ranges, type_range
from monotile.ir.program import Compute, Program, Statement
from monotile.transform.rewrite import map_exprs, map_program
from monotile.transform.simplify.algebra import ALGEBRA, COMMUTATIVE, FLIPPED
from monotile.transform.simplify.element_ranges import ElementRanges
from monotile.transform.simplify.index_algebra import simplify_index
from monotile.transform.simplify.narrow import narrow


def simplify(program: Program, options: Options) -> Program:
    """`program` with every expression simplified; values stay equal bit for bit.

    Exception: with `options.excess_precision`, float32 values that pass through float16 or bfloat16 inside an expression keep their
    precision. Computed integers are known to be in the range of the expression that computes them. Reduce axes are narrowed, and
    reductions over a single element become plain Computes.
    """
    known: dict[Expr, Expr] = {}  # statements of repeated layers often share their bodies
    ranges = ElementRanges()

    def body(e: Expr) -> Expr:
        if e not in known:
            under = Ranges(NOTHING_KNOWN, ranges.known)
            known[e] = _Simplifier(under, options.excess_precision).go(e)
        new = known[e]
        return e if new == e else new

    def simplified(s: Statement) -> Statement:
        plain = _unevaluated(s)
        return factors_kept(plain, body) or map_exprs(plain, body)

    def statement(s: Statement) -> Statement:
        new = shortened(s)
        ranges.learn(new)
        return new

    def shortened(s: Statement) -> Statement:
        new = simplified(s)
        if not isinstance(new, Compute):
            return new
        short = narrow(new)
        if short is not new:
            new = simplified(short)
        if not isinstance(new, Compute):
            return new
        wide = without_unit_axes(new)
        return wide if wide is new else map_exprs(wide, body)

    return map_program(program, statement)


def simplify_compute(s: Compute) -> Compute:
    """One Compute with its expression simplified."""
    return factors_kept(s, simplify_expr) or msgspec.structs.replace(s, body=simplify_expr(s.body))


def factors_kept(s: Statement, simplified: Callable[[Expr], Expr]) -> Compute | None:
    """A sum of products of which a factor is computed and rounded to 16 bits, or is 8 bits widened to 16: tensor cores take such
    factors, so it is kept. None for any other."""
    if not isinstance(s, Compute) or not isinstance(s.body, Binary):
        return None
    sides = (s.body.a, s.body.b)
    rounded = [_rounded(side) for side in sides]
    if rounded == [None, None] or contraction(s) is None:
        return None
    new = [
        simplified(side) if x is None else cast(cast(simplified(x), uncast(side).dtype), side.dtype)
        for side, x in zip(sides, rounded, strict=True)
    ]
    body = Binary("mul", *new)
    return s if body == s.body else msgspec.structs.replace(s, body=body)


def _rounded(e: Expr) -> Expr | None:
    """The value that is rounded to 16 bits, or is 8 bits widened to 16, and widened again."""
    match e:
        case Cast(Cast(Load() as x, middle), DType.F32) if x.dtype.itemsize == 1 and lossless(
            x.dtype, middle
        ):
            return x if middle in (DType.F16, DType.BF16) else None
        case Cast(Cast(x, middle), dtype) if _rounding_only(x.dtype, middle, dtype):
            return x
        case _:
            return None


def _unevaluated(s: Statement) -> Statement:
    """A Compute over no elements or terms has no Loads, so that no division by an extent of 0 is left."""
    if not isinstance(s, Compute) or all(a.extent for a in (*s.axes, *s.reduce)):
        return s
    return Compute(s.out, s.axes, s.reduce, s.combiner, const(0, s.body.dtype), s.origin)


def without_unit_axes(s: Compute) -> Compute:
    """`s` without reduce axes of extent 1; the others keep canonical names."""
    wide = [a for a in s.reduce if a.extent != 1]
    if len(wide) == len(s.reduce):
        return s
    new = [Axis(f"r{k}", a.extent) for k, a in enumerate(wide)]
    names: dict[str, Expr] = {a.name: idx(0) for a in s.reduce if a.extent == 1}
    names |= {a.name: b for a, b in zip(wide, new, strict=True)}
    body = substitute(s.body, names)
    if wide:
        return Compute(s.out, s.axes, tuple(new), s.combiner, body, s.origin)
    if s.combiner in ("argmax", "argmin"):
        body = idx(0)
    if s.combiner == "sum" and body.dtype.is_float:  # which begins at 0: a sum is never -0
        body = Binary("add", body, Const(0.0, body.dtype))
    return Compute(s.out, s.axes, (), None, body, s.origin)


def simplify_expr(e: Expr, facts: Facts = NOTHING_KNOWN, *, excess_precision: bool = False) -> Expr:
    """`e` simplified under `facts`; the same object if nothing changed."""
    return _Simplifier(Ranges(facts), excess_precision).go(e)


class _Simplifier:
    """Simplifies under one set of facts."""

    def __init__(self, ranges: Ranges, excess_precision: bool) -> None:
        self.ranges = ranges
        self.excess = excess_precision
        self.known: dict[Expr, Expr] = {}
        self.inner: dict[tuple[Expr, bool], _Simplifier] = {}

    def go(self, e: Expr) -> Expr:
        if e not in self.known:
            new = self._go(e)
            self.known[e] = e if new == e else new
        return self.known[e]

    def under(self, cond: Expr, value: bool) -> "_Simplifier":
        key = (cond, value)
        if key not in self.inner:
            self.inner[key] = _Simplifier(self.ranges.under(cond, value), self.excess)
        return self.inner[key]

    def _go(self, e: Expr) -> Expr:
        match e:
            case Select(cond, then, otherwise):
                c = self.go(cond)
                taken = self.ranges.truth(c)
                if taken is not None:
                    return self.go(then if taken else otherwise)
                t, o = self.under(c, True).go(then), self.under(c, False).go(otherwise)
                return self.step(Select(c, self._as_in(t, o, c, True), self._as_in(o, t, c, False)))
            case Binary("and" | "or" as op, a, b):
                first = self.go(a)
                return self.step(Binary(op, first, self.under(first, op == "and").go(b)))
            case Unary("isinf", Cast(Cast(inner, middle), dtype)) if self.excess and _rounding_only(
                inner.dtype, middle, dtype
            ):  # a finite value may round to infinity
                return Unary("isinf", Cast(Cast(self.go(inner), middle), dtype))
            case _:
                return self.step(rebuild(e, self.go))

    def _as_in(self, side: Expr, other: Expr, cond: Expr, value: bool) -> Expr:
        """A side of a choice, with the loads of the other side where they are the same on this one, on which an axis has one value: sums
        written to the rest of a matrix have all its elements at one place."""
        if not isinstance(cond, Binary) or cond.op not in COMPARE:
            return side
        ranges = self.ranges.under(cond, value)
        fixed = {a: r.lo for a in axes_of(cond) if (r := ranges.of(a)) and r.lo == r.hi}
        if not fixed:
            return side
        here: dict[str, Expr] = {a.name: idx(n) for a, n in fixed.items()}
        same = {substitute(x, here): x for x in loads(other)}
        return map_loads(side, lambda x: same.get(x, x))

    def step(self, e: Expr) -> Expr:
        """`e`, whose operands are simplified, simplified."""
        match e:
            case Const() | Axis():
                return self._point(e)
            case Load():
                return self._load(e)
            case Cast():
                return self._cast(e)
            case _:
                pass
        folded = _fold(e)
        if folded is not None:
            return folded
        if isinstance(e, Binary):
            e = _constant_right(e)
        new = ALGEBRA.apply(e, self.step)
        if new is not None:
            return new
        if isinstance(e, Binary) and e.a.dtype is DType.I64:
            new = simplify_index(e, self.ranges)
            if new != e:
                return self._point(new)
            if e.op in ("min", "max"):
                e = self._extreme(e)
        return self._point(e)

    def _point(self, e: Expr) -> Expr:
        """A literal, if `e` has only one possible value."""
        if isinstance(e, Const) or e.dtype.is_float:
            return e
        found = self.ranges.of(e)
        return const(found.lo, e.dtype) if found and found.lo == found.hi else e

    def _load(self, e: Load) -> Expr:
        # An index that does not depend on data is in bounds by contract, so for extent 1 it is 0.
        index = tuple(
            idx(0) if n == 1 and not loads(i) else i
            for i, n in zip(e.index, e.tensor.shape, strict=True)
        )
        new = e if index == e.index else Load(e.tensor, index)
        return self._point(new) if new in self.ranges.facts else new

    def _extreme(self, e: Binary) -> Expr:
        a, b = self.ranges.of(e.a), self.ranges.of(e.b)
        if a is None or b is None:
            return e
        if a.hi <= b.lo:
            return e.a if e.op == "min" else e.b
        if b.hi <= a.lo:
            return e.b if e.op == "min" else e.a
        return e

    def _cast(self, e: Cast) -> Expr:
        x, dtype = e.x, e.dtype
        if x.dtype is dtype:
            return x
        match x:
            case Const():
                return _fold(e) or e
            case Cast(inner, middle):
                if lossless(inner.dtype, middle):
                    return self.step(Cast(inner, dtype))
                if self.excess and _rounding_only(inner.dtype, middle, dtype):
                    return self.step(Cast(inner, dtype))
                span, fits = self.ranges.of(inner), type_range(middle)
                if span and fits and middle is not DType.BOOL and span.inside(fits.lo, fits.hi):
                    return self.step(Cast(inner, dtype))
            case Select(cond, then, otherwise) if any(
                isinstance(side, Cast | Const | Select) for side in (then, otherwise)
            ):
                # Only if a side becomes simpler.
                sides = (self.step(Cast(then, dtype)), self.step(Cast(otherwise, dtype)))
                if any(
                    not _is_cast_of(s, o) for s, o in zip(sides, (then, otherwise), strict=True)
                ):
                    return self.step(Select(cond, *sides))
            case _:
                pass
        return self._point(e)


def _is_cast_of(e: Expr, x: Expr) -> bool:
    return isinstance(e, Cast) and e.x == x


def _constant_right(e: Binary) -> Binary:
    if not isinstance(e.a, Const) or isinstance(e.b, Const):
        return e
    if e.op in COMMUTATIVE:
        return Binary(e.op, e.b, e.a)
    return Binary(FLIPPED[e.op], e.b, e.a) if e.op in FLIPPED else e


def lossless(source: DType, target: DType) -> bool:
    """Whether every value of `source` is representable in `target`."""
    if source is target:
        return True
    if target is DType.BOOL or target is DType.F8E8M0:  # which has no zero
        return False
    if source is DType.BOOL:
        return True
    if target.is_float:
        if source.is_float:
            return target in _WIDER.get(source, ())
        bits = {DType.BF16: 8, DType.F16: 11, DType.F32: 24, DType.F64: 53}.get(target, 0)
        return source.itemsize * 8 - (source is not DType.U8) <= bits
    if source.is_float:
        return False
    inner, outer = type_range(source), type_range(target)
    return inner is not None and outer is not None and inner.inside(outer.lo, outer.hi)


_SINGLE = (DType.F32, DType.F64)
_WIDER = {
    DType.F8E4M3: (DType.F16, DType.BF16, *_SINGLE),
    DType.F8E5M2: (DType.F16, DType.BF16, *_SINGLE),
    DType.F8E8M0: (DType.BF16, *_SINGLE),
    DType.F16: _SINGLE,
    DType.BF16: _SINGLE,
    DType.F32: (DType.F64,),
}


def _rounding_only(source: DType, middle: DType, target: DType) -> bool:
    """Whether the cast to `middle` only rounds a value that is cast back to float32. Not so where it widens 8 bits: that cast is
    deliberate."""
    return source is DType.F32 and middle in (DType.F16, DType.BF16) and target is DType.F32


def _fold(e: Expr) -> Expr | None:
    """The result of an operation on literals, by the evaluator's arithmetic."""
    parts: Sequence[Expr] = children(e)
    values: list[scalar.Array] = []
    for part in parts:
        if not isinstance(part, Const):
            return None
        values.append(scalar.constant(part.value, part.dtype))
    match e:
        case Unary(op, x):
            found = scalar.unary(op, values[0], x.dtype)
        case Binary(op, a, _):
            found = scalar.binary(op, values[0], values[1], a.dtype)
        case Cast(x, dtype):
            if x.dtype.is_float and not _has_integer(values[0], dtype):
                return None
            found = scalar.convert(values[0], dtype)
        case _:
            return None
    return const(float(found) if e.dtype.is_float else found.item(), e.dtype)


def _has_integer(x: scalar.Array, dtype: DType) -> bool:
    """Whether a float has a defined value as `dtype`."""
    span = type_range(dtype)
    if span is None or dtype is DType.BOOL:
        return True
    return bool(np.isfinite(x)) and span.lo <= int(x) <= span.hi
