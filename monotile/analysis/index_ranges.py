"""Conditions on indices as ranges of sums."""

from collections.abc import Iterable

import msgspec

from monotile.analysis.affine import Affine, affine
from monotile.ir.dtype import DType
from monotile.ir.expr import Binary, Expr, conjuncts


class IndexRange(msgspec.Struct, frozen=True):
    """low <= value <= high."""

    value: Affine
    low: int
    high: int


def index_ranges(cond: Expr) -> tuple[tuple[IndexRange, ...], tuple[Expr, ...]]:
    """The ranges among the conjuncts of `cond`, and all other conjuncts."""
    lows: dict[Affine, tuple[int, Expr]] = {}
    highs: dict[Affine, tuple[int, Expr]] = {}
    rest: list[Expr] = []
    for term in conjuncts(cond):
        match term:
            case Binary("lt" | "le" | "gt" | "ge" as op, a, b) if a.dtype is DType.I64:
                below = negative_where(op, a, b)
                sums = Affine(below.terms)
                upper = bool(below.terms) and below.terms[0][1] > 0
                found, value = (highs, sums) if upper else (lows, sums.scale(-1))
                bound = -below.constant - 1 if upper else below.constant + 1
                if value in found or not below.terms:
                    rest.append(term)
                else:
                    found[value] = (bound, term)
            case _:
                rest.append(term)
    pairs = [v for v in lows if v in highs]
    rest += [term for v, (_, term) in (*lows.items(), *highs.items()) if v not in pairs]
    return tuple(IndexRange(v, lows[v][0], highs[v][0]) for v in pairs), tuple(rest)


def tightest(terms: Iterable[Expr]) -> tuple[Expr, ...]:
    """`terms`, which all hold, without those that follow from another bound of the same sum."""
    found: dict[object, tuple[int, Expr]] = {}
    for term in terms:
        match term:
            case Binary("lt" | "le" | "gt" | "ge" as op, a, b) if a.dtype is DType.I64:
                below = negative_where(op, a, b)
                key: object = Affine(below.terms)
                if key not in found or below.constant > found[key][0]:
                    found[key] = below.constant, term
            case _:
                found[term] = 0, term
    return tuple(term for _, term in found.values())


def negative_where(op: str, a: Expr, b: Expr) -> Affine:
    """A sum that is negative exactly where `a op b` holds, of two indices."""
    difference = affine(a) + affine(b).scale(-1)
    match op:
        case "lt":
            return difference
        case "le":
            return difference + Affine((), -1)
        case "gt":
            return difference.scale(-1)
        case _:
            return difference.scale(-1) + Affine((), -1)
