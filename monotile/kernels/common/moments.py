"""Sums of squared differences from a mean, which can be computed in one pass over a row together with the row's sum.

The Program has two passes, which lose no precision: the sum, whose mean is subtracted from every element in the second. Partial results
with their own sum and sum of squares combine to those of the row (Chan, Golub and LeVeque, 1979), with equal precision.
"""

import math
from collections.abc import Mapping

from monotile.ir.dtype import DType
from monotile.ir.expr import Binary, Const, Expr, Load, substitute
from monotile.ir.program import Compute
from monotile.kernels.common.rowwise import Rowwise

ROUNDED = 2.0**-22  # largest relative error of the constant 1 / n


def moments(found: Rowwise) -> dict[str, str]:
    """Names of the sums of squared differences, with the sum that gives the mean of each; a sum belongs to one of them only."""
    sums = [s for s in found.evaluated if s.reduce and s.combiner == "sum"]
    own = {s.out.name: s for s in found.evaluated if not s.reduce and not found.wide(s)}
    out = dict[str, str]()
    for squares in sums:
        for total in sums:
            kinds = {total.body.dtype, total.out.dtype, squares.body.dtype, squares.out.dtype}
            if (
                total.out.name not in out.values()
                and kinds == {DType.F32}
                and is_squares(squares, total, own)
            ):
                out[squares.out.name] = total.out.name
    return out


def is_squares(squares: Compute, total: Compute, values: Mapping[str, Compute]) -> bool:
    """Whether `squares` sums the squared differences between the terms of `total` and their mean. values: Computes by name that may be the
    mean."""
    body = squares.body
    if not (isinstance(body, Binary) and body.op == "mul" and body.a == body.b):
        return False
    distance = body.a
    if not (isinstance(distance, Binary) and distance.op == "sub"):
        return False
    if [a.extent for a in squares.reduce] != [a.extent for a in total.reduce]:
        return False
    alike = distance.a == _at(total, total.body, squares)
    return alike and _is_mean(distance.b, total, values)


def _at(made: Compute, e: Expr, reader: Compute) -> Expr:
    """`e`, in the axes of `made`, at those of `reader`."""
    axes = (
        *zip(made.axes, reader.axes, strict=False),
        *zip(made.reduce, reader.reduce, strict=True),
    )
    return substitute(e, {a.name: b for a, b in axes})


def _is_mean(e: Expr, total: Compute, values: Mapping[str, Compute]) -> bool:
    """Whether `e` is the sum divided by the number of its terms, or loads such a value."""
    if isinstance(e, Load) and e.tensor.name in values:
        e = values[e.tensor.name].body
    if not (isinstance(e, Binary) and isinstance(e.a, Load) and isinstance(e.b, Const)):
        return False
    if e.a.tensor.name != total.out.name or not isinstance(e.b.value, float):
        return False
    n = float(math.prod(a.extent for a in total.reduce))
    if e.op == "div":
        return e.b.value == n
    return e.op == "mul" and abs(e.b.value * n - 1) <= ROUNDED
