"""Full reductions to a predicate (is any element infinite?), fused into the producer of the tensor.

    found[0] = any over all elements of ask(x[element])

would be one or two stages of its own after a barrier, which read all of x again. Instead, the stage that makes x evaluates the
predicate on each element and sets a flag that was cleared before:

    found[0] = false; ... found[0] = true where ask(x[element])

All writes are equal, so their order is irrelevant. In the Program this is a Scatter, which joins the stage of x as its follower.
"""

import math

from monotile.analysis.dependence import follows, loads_of
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Expr,
    Load,
    Tensor,
    add,
    axes_of,
    const,
    idx,
    loads,
    mul,
    substitute,
)
from monotile.ir.program import Compute, Scatter
from monotile.transform.simplify.simplify import simplify_expr

QUESTIONS = {"any": False, "all": True}  # value of the cleared flag


def fused_predicate(c: Compute) -> tuple[Compute, Scatter, Compute] | None:
    """The statements that clear and set the flag, and `c` as a read of it; None if `c` is not a full reduction to a predicate."""
    if c.combiner not in QUESTIONS:
        return None
    found = next(((x, at) for x in loads(c.body) if (at := _points(x, c)) is not None), None)
    if found is None:
        return None
    asked, point = found
    axes = _axes(asked.tensor.shape)
    clear = Tensor(f"{c.out.name}_clear", c.out.shape or (1,), DType.BOOL)
    answer = Tensor(f"{c.out.name}_found", clear.shape, DType.BOOL)
    where = tuple(point[a.name] for a in c.axes) or (idx(0),)
    value = simplify_expr(substitute(c.body, point))
    nothing = const(QUESTIONS[c.combiner], DType.BOOL)
    first = Compute(clear, _axes(clear.shape), (), None, nothing, c.origin)
    fill = Scatter(answer, clear, axes, where, value, c.combiner, c.origin)
    last = Compute(c.out, c.axes, (), None, Load(answer, c.axes or (idx(0),)), c.origin)
    return first, fill, last


def _axes(shape: tuple[int, ...]) -> tuple[Axis, ...]:
    return tuple(Axis(f"i{p}", n) for p, n in enumerate(shape))


def _points(x: Load, c: Compute) -> dict[str, Expr] | None:
    """The axes of `c` as functions of the indices of the tensor of `x`, if `x` loads every element exactly once: an axis of `c`
    runs over one dimension or, linearised, over several."""
    axes, point = _axes(x.tensor.shape), dict[str, Expr]()
    for a in (*c.axes, *c.reduce):
        total: Expr = idx(0)
        for axis, i in zip(axes, x.index, strict=True):
            total = add(mul(total, idx(axis.extent)), axis) if a in axes_of(i) else total
        point[a.name] = total
    found = (simplify_expr(substitute(i, point)) for i in x.index)
    units = (axis if axis.extent > 1 else idx(0) for axis in axes)
    each = math.prod(a.extent for a in (*c.axes, *c.reduce)) == x.tensor.size
    return point if each and all(a == b for a, b in zip(found, units, strict=True)) else None


def joins(s: Scatter, made: Compute, tensors: frozenset[str]) -> bool:
    """Whether `s` evaluates its predicate on the elements of `made`, one of the group that computes `tensors`, where each is computed."""
    own = [x for x in loads_of(s) if x.tensor.name in tensors]
    alike = tuple(a.extent for a in s.axes) == made.out.shape
    return s.combiner in QUESTIONS and alike and bool(own) and follows(s, own)
