"""Solving with LU factors of a matrix, and unpacking them."""

from collections.abc import Sequence
from typing import Any

from monotile.frontends.builder import Builder, Unsupported, element, load
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.linear_systems import (
    Lowering,
    elements,
    factors,
    substituted,
)
from monotile.frontends.torch.lower.matrix_loops import At, iterated, matrix_sizes, transposed
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Tensor, cast, const


def _order(b: Builder, pivots: Tensor, rows: int) -> Tensor:
    """The row of the matrix, from 0, that each row of L U is after all exchanges."""
    batch = pivots.shape[:-1]

    def step(b: Builder, j: Axis, states: Sequence[Tensor]) -> Any:
        (order,) = states

        def exchanged(*axes: Expr) -> Expr:
            *k, i = axes
            p = s.sub(cast(load(pivots, [*k, j]), DType.I64), 1)
            at = s.select(s.eq(i, j), p, s.select(s.eq(i, p), j, i))
            return load(order, [*k, s.maximum(s.minimum(at, rows - 1), 0)])

        return (b.emit((*batch, rows), DType.I64, exchanged, part="order"),), ()

    start = b.emit((*batch, rows), DType.I64, lambda *i: i[-1], part="order")
    (order,), _ = iterated(b, pivots.shape[-1], [start], step)
    return order


def _places(b: Builder, order: Tensor) -> Tensor:
    """The row of L U of each row of the matrix: the inverse permutation."""
    rows = order.shape[-1]

    def found(*axes: Expr) -> Expr:
        *k, i, r = axes
        here = s.eq(load(order, [*k, r]), i)
        return s.select(here, const(1, DType.I32), const(0, DType.I32))

    return b.emit(order.shape, DType.I64, found, reduce=(rows,), combiner="argmax", part="places")


def lu_solve(
    b: Builder,
    lu: Tensor,
    pivots: Tensor,
    right: Tensor,
    *,
    left: bool = True,
    adjoint: bool = False,
) -> Tensor:
    _batch, n, _n = matrix_sizes(lu)
    matrix, side, order = elements(lu), elements(right), _order(b, pivots, n)
    shape = b.shape if left else (*b.shape[:-2], b.shape[-1], b.shape[-2])
    side = side if left else transposed(side)

    def at(permutation: Tensor, x: At) -> At:
        return lambda *i: x(*i[:-2], element(permutation, i[:-1], DType.I64), i[-1])

    if adjoint is left:  # the transposed matrix times X
        half = substituted(b, shape, transposed(matrix), side, upper=False)
        found = substituted(b, shape, transposed(matrix), half, upper=True, unit=True)
        found = at(_places(b, order), found)
    else:
        half = substituted(b, shape, matrix, at(order, side), upper=False, unit=True)
        found = substituted(b, shape, matrix, half, upper=True)
    return b.result(found if left else transposed(found))


def _apart(b: Builder, lu: At, order: Tensor) -> tuple[Tensor, ...]:
    """P, L and U from their packed form."""
    one, zero = const(1, b.dtype.compute), const(0, b.dtype.compute)

    def permutation(*axes: Expr) -> Expr:
        *k, i, r = axes
        return s.select(s.eq(load(order, [*k, r]), i), one, zero)

    def lower(*i: Expr) -> Expr:
        below = s.select(s.gt(i[-2], i[-1]), lu(*i), zero)
        return s.select(s.eq(i[-2], i[-1]), one, below)

    def upper(*i: Expr) -> Expr:
        return s.select(s.le(i[-2], i[-1]), lu(*i), zero)

    return tuple(b.result(f, index=k) for k, f in enumerate((permutation, lower, upper)))


def lu_unpack(
    b: Builder, lu: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, ...]:
    if not (unpack_data and unpack_pivots):
        raise Unsupported("only some of the factors")
    return _apart(b, elements(lu), _order(b, pivots, lu.shape[-2]))


def lu(b: Builder, x: Tensor, pivot: bool = True) -> tuple[Tensor, ...]:
    if not pivot:
        raise Unsupported("pivot=False")
    found, pivots, _sign, _info = factors(b, x)
    return _apart(b, elements(found), _order(b, pivots, x.shape[-2]))


LOWERINGS: dict[str, Lowering] = {
    "aten.linalg_lu_solve.default": lu_solve,
    "aten.lu_unpack.default": lu_unpack,
    "aten.linalg_lu.default": lu,
}
