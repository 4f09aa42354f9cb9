"""Sums of squared distances from a mean, which one pass over a row finds together with its sum.

The Program has two passes, which lose no digits: the sum, whose mean is taken from every element of the second. Parts of a row that
know their own sum and squares give those of both together (Chan, Golub and LeVeque, 1979), as exactly.
"""

import math

from monotile.ir.dtype import DType
from monotile.ir.expr import Binary, Const, Expr, Load, substitute
from monotile.ir.program import Compute
from monotile.kernels.common.rowwise import Rowwise

ROUNDED = 2.0**-22  # how far off 1 / n may be, relative to it


def moments(found: Rowwise) -> dict[str, str]:
    """Names of the sums of squared distances, and of the sum that gives the mean of each: one for a sum."""
    sums = [s for s in found.evaluated if s.reduce and s.combiner == "sum"]
    out = dict[str, str]()
    for squares in sums:
        for total in sums:
            if total.out.name not in out.values() and _belong(total, squares, found):
                out[squares.out.name] = total.out.name
    return out


def _belong(total: Compute, squares: Compute, found: Rowwise) -> bool:
    body = squares.body
    if {total.body.dtype, total.out.dtype, body.dtype, squares.out.dtype} != {DType.F32}:
        return False
    if not (isinstance(body, Binary) and body.op == "mul" and body.a == body.b):
        return False
    distance = body.a
    if not (isinstance(distance, Binary) and distance.op == "sub"):
        return False
    return distance.a == _at(total, total.body, squares) and _is_mean(distance.b, total, found)


def _at(made: Compute, e: Expr, reader: Compute) -> Expr:
    """`e`, of the axes of `made`, at those of `reader`."""
    axes = (
        *zip(made.axes, reader.axes, strict=False),
        *zip(made.reduce, reader.reduce, strict=True),
    )
    return substitute(e, {a.name: b for a, b in axes})


def _is_mean(e: Expr, total: Compute, found: Rowwise) -> bool:
    """Whether `e` is the sum over the length of a row, or a value of the row that is."""
    own = {s.out.name: s for s in found.evaluated if not s.reduce and not found.wide(s)}
    if isinstance(e, Load) and e.tensor.name in own:
        e = own[e.tensor.name].body
    if not (isinstance(e, Binary) and isinstance(e.a, Load) and isinstance(e.b, Const)):
        return False
    if e.a.tensor.name != total.out.name or not isinstance(e.b.value, float):
        return False
    n = float(math.prod(found.span))
    if e.op == "div":
        return e.b.value == n
    return e.op == "mul" and abs(e.b.value * n - 1) <= ROUNDED
