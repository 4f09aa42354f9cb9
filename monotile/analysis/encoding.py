"""Encodings of a matrix operand that is decoded when it is read: packed codes, several in a word, and values that many elements share
(scales, zeros, tables)."""

import functools
from dataclasses import dataclass

from monotile.analysis.contraction import contraction, factors, grain
from monotile.ir.expr import Axis, Binary, Const, Expr, Load, axes_of, loads
from monotile.ir.program import Compute

LONGEST = 256  # elements of a table


@dataclass(frozen=True, slots=True)
class Side:
    """An operand of the decoding other than the codes. run: so many aligned neighbours share one value; 0 for all."""

    load: Load
    run: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded factor along an axis. words: the codes, of which one word has `per` neighbours. sides: the other operands, without
    `tables`, whose rows are indexed by codes."""

    words: Load
    per: int
    sides: tuple[Side, ...]
    tables: tuple[Load, ...] = ()


@functools.lru_cache(maxsize=4096)
def encoded(factor: Expr, along: Axis) -> Encoded | None:
    """The encoding of `factor` along an axis; None if it is stored unencoded, or in no supported form."""
    if isinstance(factor, Load) or along not in axes_of(factor):
        return None
    every = dict.fromkeys(loads(factor))
    inner = {x: {y for i in x.index for y in loads(i)} for x in every}
    # What says where rows are, as which expert's, is no part of the encoding.
    where = {y for found in inner.values() for y in found if along not in axes_of(y)}
    direct = [x for x in every if x not in where and inner[x] <= where]
    runs = {x: run_along(x, along) for x in direct}
    per = min(filter(None, runs.values()), default=0)
    words = [x for x, run in runs.items() if run == per]
    if None in runs.values() or not per or len(words) != 1:
        return None
    sides = tuple(Side(x, run or 0) for x, run in runs.items() if x != words[0])
    if words[0].dtype.itemsize >= per * factor.dtype.itemsize:
        return None
    looked = [x for x in every if x not in where and x not in direct]
    if not all(_looks_up(x, along) for x in looked):
        return None
    return Encoded(words[0], per, sides, tuple(looked))


@functools.lru_cache(maxsize=4096)
def coded_sides(c: Compute) -> tuple[int, ...]:
    """Which factors of a sum of products are stored as codes."""
    if contraction(c) is None:
        return ()
    return tuple(k for k, f in enumerate(factors(c)) if encoded(f, c.reduce[-1]) is not None)


def _looks_up(x: Load, along: Axis) -> bool:
    """Whether the element of a short row that `x` loads depends on data, and on nothing else that varies along the axis."""
    *before, last = x.index
    alike = not any(loads(i) or along in axes_of(i) for i in before)
    inner = (z for y in loads(last) for i in y.index for z in loads(i))
    short = x.tensor.shape[-1] <= LONGEST
    return alike and short and not any(along in axes_of(z) for z in inner)


def run_along(x: Load, along: Axis) -> int | None:
    """Neighbours along the axis for which `x` is the same: 0 for all; None if its index is no quotient."""
    if along not in axes_of(x):
        return 0
    *before, last = x.index
    if any(along in axes_of(i) for i in before) or not quotient(last, along):
        return None
    return grain(last, along)


def quotient(e: Expr, along: Axis) -> bool:
    """Whether `e` is the axis, or its quotient by so many neighbours."""
    match e:
        case Axis():
            return e == along
        case Binary("floordiv", x, Const(value)):
            return x == along and along.extent % int(value) == 0
        case _:
            return False
