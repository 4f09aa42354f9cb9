"""The order in which a product loops over its reduction axes."""

import math
from collections.abc import Sequence

from monotile.analysis.affine import Affine, contiguous_run, flattened, offset
from monotile.analysis.contraction import Contraction
from monotile.analysis.masked import choice, masked
from monotile.analysis.runs import order_of_left
from monotile.ir.expr import Axis, Expr
from monotile.ir.program import Compute
from monotile.targets.target import Target


def order_of_sum(
    c: Compute, found: Contraction, target: Target, *, panels: bool
) -> tuple[int, ...]:
    """The reduce axes, with the one along which an operand is contiguous last; for register tiles all of them in memory order, if an
    operand is contiguous along all. panels: the right operand is packed in any order, so the left one decides."""
    if panels and (order := order_of_left(c, found)):
        return order
    if target.has.register_tiles:
        line = _in_line(found.right, c, found.k) or _in_line(found.left, c, found.k)
        if line:
            return line

    def run(p: int) -> int:
        sides = (*(choice(found.left) or ()), *(choice(found.right) or ()))
        return max((contiguous_run(offset(s.load), c.reduce[p], 8) for s in sides), default=1)

    last = max(found.k, key=lambda p: (run(p), p))
    return (*(p for p in found.k if p != last), last)


def _in_line(factor: Expr, c: Compute, k: tuple[int, ...]) -> tuple[int, ...]:
    """The reduce axes `k` in the order in which `factor` is contiguous along all of them; () if there is none."""
    x = masked(factor)
    if x is None:
        return ()
    where = offset(x.load)
    order = sorted(k, key=lambda p: -where.coefficient(c.reduce[p]))
    return tuple(order) if is_line(where, [c.reduce[p] for p in order]) else ()


def is_line(where: Affine, axes: Sequence[Axis]) -> bool:
    """Whether the offset is contiguous along all the row-major `axes`."""
    flat, axis = flattened(where, axes)
    return flat.coefficient(axis) == 1 and axis.extent == math.prod(a.extent for a in axes)
