"""Uniformity over the lanes of a vector: conditions, quotients and remainders of indices that are equal for all lanes, or depend on the
lane alone."""

import math

from monotile.analysis.affine import Affine, affine
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    COMPARE,
    Axis,
    Binary,
    Expr,
    add,
    axes_of,
    idx,
    loads,
    mul,
    rebuild,
    substitute,
)


def fold_uniform(e: Expr, lane: Axis) -> Expr:
    """`e` with every comparison and quotient of indices that is uniform over `lane` rewritten without it, and quotients and remainders
    that depend on the lane alone rewritten without other axes."""

    def go(node: Expr) -> Expr:
        if lane not in axes_of(node):
            return node
        match node:
            case Binary(op, a, b) if op in COMPARE and a.dtype is DType.I64:
                return _first(node, lane) if _decided(op, a, b, lane) else rebuild(node, go)
            case Binary("floordiv" | "mod", _, _) if node.dtype is DType.I64 and not loads(node):
                whole = affine(node)
                alone = not whole.mentions(lane) or not axes_of(whole.expr) - {lane}
                return whole.expr if alone else rebuild(node, go)
            case _:
                return rebuild(node, go)

    return go(e)


def uniform_run(cond: Expr, axis: Axis, limit: int) -> int:
    """Neighbours along `axis`, from a multiple of their number on, for which `cond` is the same: a power of two up to `limit`."""
    run = limit if axis in axes_of(cond) else 0
    while run > 1:
        lane = Axis("lane", run)
        at = add(mul(Axis(axis.name, -(-axis.extent // run)), idx(run)), lane)
        if lane not in axes_of(fold_uniform(substitute(cond, {axis.name: at}), lane)):
            break
        run //= 2
    return run or limit


def _first(e: Binary, lane: Axis) -> Expr:
    start: dict[str, Expr] = {lane.name: idx(0)}
    return Binary(e.op, *(affine(substitute(x, start)).expr for x in (e.a, e.b)))


def _decided(op: str, a: Expr, b: Expr, lane: Axis) -> bool:
    """Whether `a op b` is uniform over the lanes: a lane adds less than `step` to multiples of it and cannot change a sign."""
    if loads(a) or loads(b):
        return False
    sides = affine(a) + affine(b).scale(-1)
    along = sides.coefficient(lane)
    rest = Affine(tuple(t for t in sides.terms if t[0] != lane), sides.constant)
    if rest.mentions(lane) or (along and op in ("eq", "ne")):
        return False
    if op in ("le", "gt"):  # as the sign of a sum
        rest += Affine((), -1)
    if along < 0:
        rest = rest.scale(-1) + Affine((), -1)
    step = math.gcd(rest.constant, *(c for _, c in rest.terms))
    return not step or abs(along) * (lane.extent - 1) < step
