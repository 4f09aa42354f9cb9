"""Factorisations of matrices, and linear systems. Each step of a loop does to all rows at once what elimination does by hand."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monotile.frontends.builder import Builder, Unsupported, element, load
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.matrix_loops import At, iterated, matrix_sizes, transposed
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Tensor, cast, const, idx

Lowering = Callable[..., Any]


def elements(x: Tensor) -> At:
    """The elements of `x`, by an index to which it is broadcast."""
    return lambda *i: element(x, i, x.dtype.compute)


def _no_failure(b: Builder, batch: Sequence[int]) -> Tensor:
    return b.emit(batch, DType.I32, lambda *_: const(0, DType.I32), part="info")


def _failed(b: Builder, info: Tensor, j: Axis, fails: Callable[..., Expr]) -> Tensor:
    """`info` after step `j`: the number, from 1, of the first step that `fails`."""

    def number(*k: Expr) -> Expr:
        first = s.both(s.eq(load(info, k), 0), fails(*k))
        return s.select(first, cast(s.add(j, 1), DType.I32), load(info, k))

    return b.emit(info.shape, DType.I32, number, part="failed")


def cholesky(b: Builder, x: Tensor, upper: bool = False, **_: object) -> tuple[Tensor, Tensor]:
    """The factor column by column; after each column, the rest of the matrix is reduced by its outer product."""
    batch, n, _n = matrix_sizes(x)
    wide = x.dtype.compute
    source = transposed(elements(x)) if upper else elements(x)

    def step(b: Builder, j: Axis, states: Sequence[Tensor]) -> Any:
        left, info = states

        def column(*axes: Expr) -> Expr:
            *k, i = axes
            pivot = s.call("sqrt", load(left, [*k, j, j]))
            below = s.select(s.eq(i, j), pivot, s.div(load(left, [*k, i, j]), pivot))
            return s.select(s.ge(i, j), below, const(0, wide))

        made = b.emit((*batch, n), wide, column, part="column")

        def rest(*axes: Expr) -> Expr:
            *k, i, c = axes
            own = load(left, axes)
            less = s.sub(own, s.mul(load(made, [*k, i]), load(made, [*k, c])))
            return s.select(s.gt(c, j), less, s.select(s.eq(c, j), load(made, [*k, i]), own))

        def fails(*k: Expr) -> Expr:
            return s.negation(s.gt(load(left, [*k, j, j]), 0))

        new = b.emit((*batch, n, n), wide, rest, part="left")
        return (new, _failed(b, info, j, fails)), ()

    left = b.emit((*batch, n, n), wide, source, part="matrix")
    (found, info), _left = iterated(b, n, [left, _no_failure(b, batch)], step)

    def lower(*i: Expr) -> Expr:
        return s.select(s.ge(i[-2], i[-1]), load(found, i), const(0, wide))

    return b.result(transposed(lower) if upper else lower, index=0), info


def _pivot(b: Builder, x: Tensor, j: Axis, rows: int) -> Tensor:
    """The row, from `j` on, with the largest element in column `j`."""

    def size(*axes: Expr) -> Expr:
        *k, r = axes
        return s.select(s.ge(r, j), s.call("abs", load(x, [*k, r, j])), const(-1, x.dtype))

    return b.emit(x.shape[:-2], DType.I64, size, reduce=(rows,), combiner="argmax", part="pivot")


def _swapped(x: Tensor, j: Axis, pivot: Tensor) -> At:
    """The matrix with row `j` and the pivot row exchanged."""

    def at(*axes: Expr) -> Expr:
        *k, i, c = axes
        p = load(pivot, k)
        row = s.select(s.eq(i, j), p, s.select(s.eq(i, p), j, i))
        last = x.shape[-2] - 1
        return load(x, [*k, s.maximum(s.minimum(row, last), 0), c])

    return at


def factors(b: Builder, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """L and U in one matrix; the row that each step exchanged, from 1; whether the exchanges are an even (1) or odd (-1) permutation; and
    `info`."""
    batch, m, n = matrix_sizes(x)
    wide = x.dtype.compute

    def step(b: Builder, j: Axis, states: Sequence[Tensor]) -> Any:
        left, sign, info = states
        pivot = _pivot(b, left, j, m)
        row = _swapped(left, j, pivot)

        def factor(*axes: Expr) -> Expr:
            *k, i = axes
            top, own = row(*k, j, j), row(*k, i, j)
            return s.select(s.eq(top, 0), own, s.div(own, top))

        column = b.emit((*batch, m), wide, factor, part="factors")

        def eliminated(*axes: Expr) -> Expr:
            *k, i, c = axes
            own, f = row(*axes), load(column, [*k, i])
            behind = s.select(s.gt(c, j), s.sub(own, s.mul(f, row(*k, j, c))), own)
            return s.select(s.gt(i, j), s.select(s.eq(c, j), f, behind), own)

        def turns(*k: Expr) -> Expr:
            own = load(sign, k)
            return s.select(s.eq(load(pivot, k), j), own, s.neg(own))

        new = b.emit((*batch, m, n), wide, eliminated, part="left")
        taken = b.emit(
            batch, DType.I32, lambda *k: cast(s.add(load(pivot, k), 1), DType.I32), part="taken"
        )
        signs = b.emit(batch, wide, turns, part="sign")
        return (new, signs, _failed(b, info, j, lambda *k: s.eq(row(*k, j, j), 0))), (taken,)

    matrix = b.emit((*batch, m, n), wide, elements(x), part="matrix")
    even = b.emit(batch, wide, lambda *_: const(1, wide), part="even")
    start = [matrix, even, _no_failure(b, batch)]
    (found, sign, info), (taken,) = iterated(b, min(m, n), start, step)
    pivots = b.emit(
        (*batch, min(m, n)), DType.I32, lambda *i: load(taken, [i[-1], *i[:-1]]), part="pivots"
    )
    return found, pivots, sign, info


def lu_factor(b: Builder, x: Tensor, pivot: bool = True, **_: object) -> tuple[Tensor, ...]:
    if not pivot:
        raise Unsupported("pivot=False")
    found, pivots, _sign, info = factors(b, x)
    return found, pivots, info


def det(b: Builder, x: Tensor) -> tuple[Tensor, ...]:
    found, pivots, sign, _info = factors(b, x)

    def product(*axes: Expr) -> Expr:
        *k, r = axes
        return load(found, [*k, r, r])

    n = x.shape[-1]
    diagonal = b.emit(
        x.shape[:-2], found.dtype, product, reduce=(n,), combiner="prod", part="diagonal"
    )
    return (
        b.result(lambda *k: s.mul(load(sign, k), load(diagonal, k)), index=0),
        found,
        pivots,
    )


def slogdet(b: Builder, x: Tensor) -> tuple[Tensor, ...]:
    found, pivots, sign, _info = factors(b, x)
    n, batch = x.shape[-1], x.shape[:-2]

    def signs(*axes: Expr) -> Expr:
        *k, r = axes
        v = load(found, [*k, r, r])
        one = const(1, v.dtype)
        return s.select(s.gt(v, 0), one, s.select(s.lt(v, 0), s.neg(one), v))

    def size(*axes: Expr) -> Expr:
        *k, r = axes
        return s.call("log", s.call("abs", load(found, [*k, r, r])))

    own = b.emit(batch, found.dtype, signs, reduce=(n,), combiner="prod", part="signs")
    logarithm = b.result(size, reduce=(n,), combiner="sum", index=1)
    return (
        b.result(lambda *k: s.mul(load(sign, k), load(own, k)), index=0),
        logarithm,
        found,
        pivots,
    )


def _eliminated(
    b: Builder, batch: Sequence[int], n: int, matrix: At, right: tuple[At, int]
) -> tuple[At, Tensor]:
    """The elements of the inverse of `matrix` times `right` (elements, columns), by Gauss-Jordan elimination; and `info`."""
    side, columns = right
    whole = (*batch, n, n + columns)

    def both(*axes: Expr) -> Expr:
        *k, i, c = axes
        inside = matrix(*k, i, s.minimum(c, n - 1))
        return s.select(s.lt(c, n), inside, side(*k, i, s.maximum(s.sub(c, n), 0)))

    def step(b: Builder, j: Axis, states: Sequence[Tensor]) -> Any:
        left, info = states
        row = _swapped(left, j, _pivot(b, left, j, n))

        def scaled(*axes: Expr) -> Expr:
            *k, c = axes
            return s.div(row(*k, j, c), row(*k, j, j))

        top = b.emit((*batch, n + columns), left.dtype, scaled, part="row")

        def reduced(*axes: Expr) -> Expr:
            *k, i, c = axes
            own = load(top, [*k, c])
            return s.select(s.eq(i, j), own, s.sub(row(*axes), s.mul(row(*k, i, j), own)))

        new = b.emit(whole, left.dtype, reduced, part="left")
        return (new, _failed(b, info, j, lambda *k: s.eq(row(*k, j, j), 0))), ()

    start = b.emit(whole, b.dtype.compute, both, part="augmented")
    (found, info), _ = iterated(b, n, [start, _no_failure(b, batch)], step)
    return lambda *i: load(found, [*i[:-1], s.add(i[-1], n)]), info


def _identity(dtype: DType) -> At:
    return lambda *i: s.select(s.eq(i[-2], i[-1]), const(1, dtype), const(0, dtype))


def inv(b: Builder, x: Tensor, **_: object) -> tuple[Tensor, Tensor]:
    batch, n, _n = matrix_sizes(x)
    unit = _identity(b.dtype.compute)
    found, info = _eliminated(b, batch, n, elements(x), (unit, n))
    return b.result(found, index=0), info


def solve(b: Builder, a: Tensor, right: Tensor, *, left: bool = True, **_: object) -> Any:
    _batch, n, _n = matrix_sizes(a)
    vector = len(right.shape) == 1 or right.shape == a.shape[:-1]
    matrix, side = elements(a), elements(right)
    ahead = b.shape[:-1] if vector else b.shape[:-2]
    if vector:
        found, _info = _eliminated(b, ahead, n, matrix, (lambda *i: side(*i[:-1]), 1))
        x = b.result(lambda *i: found(*i, idx(0)), index=0)
    elif left:
        found, _info = _eliminated(b, ahead, n, matrix, (side, b.shape[-1]))
        x = b.result(found, index=0)
    else:
        found, _info = _eliminated(b, ahead, n, transposed(matrix), (transposed(side), b.shape[-2]))
        x = b.result(transposed(found), index=0)
    both, pivots, _sign, info = factors(b, a)
    return x, both, pivots, info


def substituted(
    b: Builder, shape: Sequence[int], matrix: At, right: At, *, upper: bool, unit: bool = False
) -> At:
    """The elements of X [..., n, columns] with the triangle of `matrix` times X = `right`, by forward or backward substitution."""
    *batch, n, columns = shape

    def step(b: Builder, j: Axis, states: Sequence[Tensor]) -> Any:
        (x,) = states
        r: Expr = s.sub(idx(n - 1), j) if upper else j

        def own(*axes: Expr) -> Expr:
            *k, c = axes
            v = load(x, [*k, r, c])
            return v if unit else s.div(v, matrix(*k, r, r))

        row = b.emit((*batch, columns), x.dtype, own, part="row")

        def rest(*axes: Expr) -> Expr:
            *k, i, c = axes
            v = load(row, [*k, c])
            less = s.sub(load(x, axes), s.mul(matrix(*k, i, r), v))
            after = s.lt(i, r) if upper else s.gt(i, r)
            return s.select(s.eq(i, r), v, s.select(after, less, load(x, axes)))

        return (b.emit(shape, x.dtype, rest, part="rest"),), ()

    start = b.emit(shape, b.dtype.compute, right, part="right")
    (found,), _ = iterated(b, n, [start], step)
    return lambda *i: load(found, i)


def solve_triangular(
    b: Builder,
    a: Tensor,
    right: Tensor,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Tensor:
    matrix_sizes(a)
    matrix, side, shape = elements(a), elements(right), b.shape
    if left:
        return b.result(substituted(b, shape, matrix, side, upper=upper, unit=unitriangular))
    shape = (*shape[:-2], shape[-1], shape[-2])
    found = substituted(
        b, shape, transposed(matrix), transposed(side), upper=not upper, unit=unitriangular
    )
    return b.result(transposed(found))


def triangular_solve(
    b: Builder,
    right: Tensor,
    a: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Tensor, Tensor]:
    matrix_sizes(a)
    matrix = transposed(elements(a)) if transpose else elements(a)
    found = substituted(
        b, b.shape, matrix, elements(right), upper=upper != transpose, unit=unitriangular
    )
    return b.result(found, index=0), b.result(elements(a), index=1)


def _by_cholesky(b: Builder, factor: Tensor, right: At, upper: bool) -> Tensor:
    matrix_sizes(factor)
    lower = transposed(elements(factor)) if upper else elements(factor)
    half = substituted(b, b.shape, lower, right, upper=False)
    return b.result(substituted(b, b.shape, transposed(lower), half, upper=True))


def cholesky_solve(b: Builder, right: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    return _by_cholesky(b, factor, elements(right), upper)


def cholesky_inverse(b: Builder, factor: Tensor, upper: bool = False) -> Tensor:
    return _by_cholesky(b, factor, _identity(b.dtype.compute), upper)


LOWERINGS: Mapping[str, Lowering] = {
    "aten.linalg_cholesky_ex.default": cholesky,
    "aten.cholesky": lambda b, x, upper=False: cholesky(b, x, upper)[0],
    "aten.cholesky_solve.default": cholesky_solve,
    "aten.cholesky_inverse.default": cholesky_inverse,
    "aten.linalg_lu_factor_ex.default": lu_factor,
    "aten._linalg_det.default": det,
    "aten._linalg_slogdet.default": slogdet,
    "aten.linalg_inv_ex.default": inv,
    "aten._linalg_solve_ex.default": solve,
    "aten.linalg_solve_triangular.default": solve_triangular,
    "aten.triangular_solve.default": triangular_solve,
}
