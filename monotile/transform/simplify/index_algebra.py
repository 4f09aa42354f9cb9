"""Quasi-affine index algebra: sums, quotients and remainders of int64 by constants, and comparisons of them.

Based on the normal form of `analysis.linear`. A sum stays correct if it wraps; quotients, remainders and
comparisons are only rewritten if intervals prove that nothing wraps.
"""

from math import gcd

from monotile.analysis.linear import Linear, constant_of, linear
from monotile.ir.dtype import DType
from monotile.ir.expr import Binary, Const, Expr, const, idx, mul
from monotile.ir.intervals import Interval, Ranges, type_range

_SPAN = type_range(DType.I64)
assert _SPAN is not None
INT64: Interval = _SPAN


def span(e: Linear, ranges: Ranges) -> Interval | None:
    """The interval of the sum; None if it or one of its terms may wrap."""
    lo = hi = e.constant
    for factor, atom in e.terms:
        found = ranges.of(atom)
        if found is None or not found.inside(INT64.lo // 2, INT64.hi // 2):
            return None
        ends = (factor * found.lo, factor * found.hi)
        lo, hi = lo + min(ends), hi + max(ends)
    return Interval(lo, hi) if Interval(lo, hi).inside(INT64.lo, INT64.hi) else None


def build(e: Linear) -> Expr:
    """The sum as an expression: positive terms, then negative terms, then the constant. The least number, which has no negative, is added."""
    acc: Expr | None = None
    for factor, atom in e.terms:
        if factor > 0 or factor == INT64.lo:
            term = mul(atom, idx(factor))
            acc = term if acc is None else Binary("add", acc, term)
    constant = e.constant
    if acc is None:
        acc, constant = idx(constant), 0
    for factor, atom in e.terms:
        if INT64.lo < factor < 0:
            acc = Binary("sub", acc, mul(atom, idx(-factor)))
    if constant:
        added = constant > 0 or constant == INT64.lo
        acc = Binary("add", acc, idx(constant)) if added else Binary("sub", acc, idx(-constant))
    return acc


def _plus(*parts: tuple[int, Expr], constant: int = 0) -> Expr:
    """sum(factor * expression) + constant, in normal form."""
    terms: dict[Expr, int] = {}
    for factor, e in parts:
        inner = linear(e)
        constant += factor * inner.constant
        for f, atom in inner.terms:
            terms[atom] = terms.get(atom, 0) + factor * f
    return build(Linear(tuple((f, a) for a, f in terms.items() if f), constant))


def simplify_index(e: Expr, ranges: Ranges) -> Expr:
    """`e`, an int64 expression or a comparison of two, simplified; its operands are already simplified."""
    match e:
        case Binary("add" | "sub" | "mul"):
            return simplify_sum(e, ranges)
        case Binary("floordiv", x, y) if (n := constant_of(y)) is not None and n > 0:
            return floordiv(x, n, ranges)
        case Binary("mod", x, y) if (n := constant_of(y)) is not None and n > 0:
            return mod(x, n, ranges)
        case Binary("lt" | "le" | "gt" | "ge" | "eq" | "ne" as op, a, b):
            return _compare(op, a, b, ranges) or e
        case _:
            return e


def simplify_sum(e: Expr, ranges: Ranges) -> Expr:
    """The normal form of a sum, with (x // n) * n + x % n joined to x."""
    now = _wrapped(linear(e))
    while (joined := _join(now, ranges)) is not None:
        now = joined
    return build(now)


def _wrapped(e: Linear) -> Linear:
    """Coefficients and constant wrapped to int64."""

    def wrap(n: int) -> int:
        return (n - INT64.lo) % (1 << 64) + INT64.lo

    return Linear(
        tuple((wrap(factor), atom) for factor, atom in e.terms if wrap(factor)), wrap(e.constant)
    )


def _join(e: Linear, ranges: Ranges) -> Linear | None:
    """One pair k * (x % n) + k * n * (x // n) joined to k * x, or with (x // n) % m to k * (x % (n * m))."""
    by_factor: dict[int, list[Expr]] = {}
    for factor, atom in e.terms:
        by_factor.setdefault(factor, []).append(atom)
    for factor, atom in e.terms:
        match atom:
            case Binary("mod", x, Const(value)) if int(value) > 0:
                n = int(value)
                partners = by_factor.get(factor * n)
                if not partners:
                    continue
                quotient = floordiv(x, n, ranges)
                for other in partners:
                    match other:
                        case _ if other == quotient:
                            whole = x
                        case Binary("mod", q, Const(m)) if q == quotient and int(m) > 0:
                            whole = mod(x, n * int(m), ranges)
                        case _:
                            continue
                    rest = Linear(
                        tuple(t for t in e.terms if t[1] not in (atom, other)), e.constant
                    )
                    return _wrapped(linear(_plus((factor, whole), (1, build(rest)))))
            case _:
                pass
    return None


def _divided(e: Linear, n: int) -> tuple[Linear, Linear]:
    """(q, r) with e = q * n + r: whole multiples of n in q, the constant of r between 0 and n - 1."""
    q = Linear(tuple((f // n, a) for f, a in e.terms if f % n == 0), e.constant // n)
    r = Linear(tuple((f, a) for f, a in e.terms if f % n), e.constant % n)
    return q, r


def _coarse(e: Linear, n: int, ranges: Ranges) -> tuple[int, Linear, Linear] | None:
    """(g, q, r) with e = q * g + r, 1 < g < n, g | n and 0 <= r < g; the greatest such g."""
    candidates = {gcd(f, n) for f, _ in e.terms} - {1, n}
    for g in sorted(candidates, reverse=True):
        q, r = _divided(e, g)
        inside = span(r, ranges)
        if inside is not None and inside.inside(0, g - 1):
            return g, q, r
    return None


def floordiv(x: Expr, n: int, ranges: Ranges) -> Expr:
    """x // n for n > 0."""
    e = linear(x)
    if n == 1:
        return x
    if span(e, ranges) is None:
        return Binary("floordiv", x, idx(n))
    q, r = _divided(e, n)
    inside = span(r, ranges)
    if inside is not None and inside.lo // n == inside.hi // n:
        return build(Linear(q.terms, q.constant + inside.lo // n))
    return _plus((1, build(q)), (1, _quotient(r, n, ranges)))


def _quotient(r: Linear, n: int, ranges: Ranges) -> Expr:
    coarse = _coarse(r, n, ranges)
    if coarse is not None:
        g, q, _ = coarse
        return floordiv(build(q), n // g, ranges)
    if len(r.terms) == 1 and r.terms[0][0] == 1:
        match r.terms[0][1]:
            case Binary("floordiv", y, Const(value)) if (m := int(value)) > 0:
                # (y // m + k) // n = (y + k m) // (m n)
                inner = _plus((1, y), constant=r.constant * m)
                if m * n <= INT64.hi and span(linear(inner), ranges) is not None:
                    return floordiv(inner, m * n, ranges)
            case Binary("mod", y, Const(value)) if r.constant == 0 and int(value) % n == 0:
                if int(value) > 0:
                    return mod(floordiv(y, n, ranges), int(value) // n, ranges)
            case _:
                pass
    return Binary("floordiv", build(r), idx(n))


def mod(x: Expr, n: int, ranges: Ranges) -> Expr:
    """x mod n for n > 0."""
    e = linear(x)
    if n == 1:
        return idx(0)
    if span(e, ranges) is None:
        return Binary("mod", x, idx(n))
    _, r = _divided(e, n)
    inside = span(r, ranges)
    if inside is not None and inside.lo // n == inside.hi // n:
        return build(Linear(r.terms, r.constant - inside.lo // n * n))
    coarse = _coarse(r, n, ranges)
    if coarse is not None:
        g, q, low = coarse
        return _plus((g, mod(build(q), n // g, ranges)), (1, build(low)))
    if len(r.terms) == 1 and r.terms[0][0] == 1 and r.constant == 0:
        match r.terms[0][1]:
            case Binary("mod", y, Const(value)) if int(value) > 0 and int(value) % n == 0:
                return mod(y, n, ranges)
            case _:
                pass
    return Binary("mod", build(r), idx(n))


def _compare(op: str, a: Expr, b: Expr, ranges: Ranges) -> Expr | None:
    """`a op b` decided, or with the smallest possible constant alone on the right."""
    difference = linear(Binary("sub", a, b))
    left, right = linear(a), linear(b)
    if any(span(part, ranges) is None for part in (difference, left, right)):
        return None
    inside = span(difference, ranges)
    assert inside is not None
    decided = _decide(op, inside.lo, inside.hi)
    if decided is not None:
        return const(decided, DType.BOOL)
    if right.terms:  # two sides that depend on axes are left unchanged
        return None
    return _against_constant(op, difference.terms, -difference.constant, ranges)


def _decide(op: str, lo: int, hi: int) -> bool | None:
    """The value of `d op 0` for all d between lo and hi, if it is the same."""
    match op:
        case "lt":
            return True if hi < 0 else False if lo >= 0 else None
        case "le":
            return True if hi <= 0 else False if lo > 0 else None
        case "gt":
            return True if lo > 0 else False if hi <= 0 else None
        case "ge":
            return True if lo >= 0 else False if hi < 0 else None
        case "eq":
            return True if lo == hi == 0 else False if lo > 0 or hi < 0 else None
        case _:
            return False if lo == hi == 0 else True if lo > 0 or hi < 0 else None


def _against_constant(op: str, terms: tuple[tuple[int, Expr], ...], k: int, ranges: Ranges) -> Expr:
    """sum(terms) op k with only `lt`, `ge`, `eq` and `ne`, and a positive leading term."""
    if all(factor < 0 for factor, _ in terms):
        terms, k = tuple((-factor, atom) for factor, atom in terms), -k
        op = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}.get(op, op)
    match op:
        case "le":
            op, k = "lt", k + 1
        case "gt":
            op, k = "ge", k + 1
        case _:
            pass
    whole = Linear(terms, 0)
    if op in ("lt", "ge"):
        # x < g m is x // g < m.
        for g in sorted({gcd(factor, k) for factor, _ in terms} - {0, 1}, reverse=True):
            q, r = _divided(whole, g)
            inside = span(r, ranges)
            if q.terms and inside is not None and inside.inside(0, g - 1):
                return _against_constant(op, q.terms, k // g, ranges)
    return Binary(op, build(whole), idx(k))
