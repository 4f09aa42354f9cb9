"""Recognises Computes that are contractions, and classifies their axes (the index classes of an einsum)."""

import functools
import math
from collections.abc import Mapping

import msgspec

from monotile.ir.dtype import DType
from monotile.ir.expr import (
    TF32_FACTORS,
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Select,
    Unary,
    axes_of,
    children,
    loads,
)
from monotile.ir.program import Compute


class Contraction(msgspec.Struct, frozen=True):
    """out[batch, m, n] = sum over k of left[batch, m, k] * right[batch, n, k].

    left, right:    the factors, without the cast to the accumulation type.
    batch, m, n:    positions in the Compute's axes, ascending; `n` holds the last axis if m or n does.
    k:              positions in the Compute's reduce axes.
    grains:         (position, size) of those of m and n in which the other factor is constant over each aligned run of
                    `size` only: the output channels of a grouped convolution, of which a run reads the same input.
    swapped:        `left` is the second factor of the body.
    """

    left: Expr
    right: Expr
    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    grains: tuple[tuple[int, int], ...] = ()
    swapped: bool = False


def factors(c: Compute, *, swapped: bool = False) -> tuple[Expr, Expr]:
    """The two factors of a sum of products, without the casts to the accumulation type; swapped: the second one first."""
    assert isinstance(c.body, Binary)
    first, second = uncast(c.body.a), uncast(c.body.b)
    return (second, first) if swapped else (first, second)


@functools.lru_cache(maxsize=4096)
def contraction(c: Compute, apart: frozenset[int] = frozenset()) -> Contraction | None:
    """`c` as a contraction, or None if it is not a sum over a product of two factors. apart: positions of axes that are walked one by
    one and so count as neither m nor n."""
    if c.combiner != "sum" or not (isinstance(c.body, Binary) and c.body.op == "mul"):
        return None
    left, right = uncast(c.body.a), uncast(c.body.b)
    in_left, in_right = axes_of(left), axes_of(right)
    if not any(r in in_left and r in in_right for r in c.reduce):
        return None
    grains: list[tuple[int, int]] = []

    def only(p: int, side: Expr, other: Expr) -> bool:
        """Whether axis p belongs to `side` alone, at least within each run."""
        axis = c.axes[p]
        size = grain(other, axis)
        if axis not in axes_of(side) or size == 0:
            return axis in axes_of(side)
        if size == 1 or axis.extent % size or grain(side, axis) != 1:
            return False
        grains.append((p, size))
        return True

    free = [p for p in range(len(c.axes)) if p not in apart]
    m = _own([p for p in free if only(p, left, right)], grains)
    n = _own([p for p in free if only(p, right, left)], grains)
    grains = [g for g in grains if g[0] in (*m, *n)]
    batch = tuple(p for p in range(len(c.axes)) if p not in m and p not in n)
    swapped = (len(c.axes) - 1) in m
    if swapped:
        left, right, m, n = right, left, n, m
    k = tuple(range(len(c.reduce)))
    return Contraction(left, right, batch, m, n, k, tuple(grains), swapped)


def _own(side: list[int], grains: list[tuple[int, int]]) -> tuple[int, ...]:
    """The axes of a side. An axis on which the other factor depends from run to run counts only if there is no better one;
    otherwise it is a batch axis (query heads that share a head of keys)."""
    steady = [p for p in side if p not in {g for g, _ in grains}]
    return tuple(steady or side)


def grain(e: Expr, axis: Axis) -> int:
    """The largest size such that `e` is constant over each aligned run of so many values of `axis`; 0 if over all."""
    match e:
        case Axis():
            return 1 if e == axis else 0
        case Binary("floordiv", x, Const(size)) if x == axis:
            return int(size)
        case _:
            return math.gcd(*(grain(child, axis) for child in children(e)))


# The types that hardware multiplies, and the accumulation type of each.
SUMMED_IN: Mapping[DType, DType] = {
    DType.F16: DType.F32,
    DType.BF16: DType.F32,
    DType.I8: DType.I32,
    DType.U8: DType.I32,
    DType.F8E4M3: DType.F32,
}


def in_tf32(c: Compute) -> bool:
    """Whether both factors of a sum of products may be rounded to TF32."""
    sides = (c.body.a, c.body.b) if isinstance(c.body, Binary) else ()
    return bool(sides) and all(isinstance(x, Unary) and x.op in TF32_FACTORS for x in sides)


def rounded(c: Compute, *, swapped: bool = False) -> tuple[bool, bool]:
    """Whether each of the two factors of a sum of products is known to be in TF32; swapped: the second one first."""
    assert isinstance(c.body, Binary)
    first, second = (isinstance(x, Unary) and x.op == "is_tf32" for x in (c.body.a, c.body.b))
    return (second, first) if swapped else (first, second)


def uncast(e: Expr) -> Expr:
    """The value before a cast from a 16-bit float, or from 8 bits, to the accumulation type; with padding it is a select between such
    casts and constants. Also without a marker that TF32 suffices."""
    if isinstance(e, Unary) and e.op in TF32_FACTORS:
        return e.x
    return next((x for d in SUMMED_IN if (x := _narrow(e, d)) and loads(x)), e)


def _narrow(e: Expr, dtype: DType) -> Expr | None:
    """An expression of this type equal to `e`, if `e` is only widened by casts, possibly under selects."""
    match e:
        case Cast(x, wide) if x.dtype is dtype and wide is SUMMED_IN[dtype]:
            return x
        case Const(value, wide) if value == 0 and wide is SUMMED_IN[dtype]:  # of either sign
            return Const(value, dtype)
        case Select(cond, then, otherwise):
            sides = _narrow(then, dtype), _narrow(otherwise, dtype)
            return Select(cond, sides[0], sides[1]) if sides[0] and sides[1] else None
        case _:
            return None
