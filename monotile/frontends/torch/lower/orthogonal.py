"""Factorisations with orthonormal columns: QR by Householder reflections, eigenvectors and singular vectors by Jacobi rotations."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from monotile.frontends.builder import Builder, Unsupported, load, raised
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.matrix_loops import At, iterated, matrix_sizes, transposed
from monotile.frontends.torch.lower.sorting import order_of
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Expr, Tensor, const

Lowering = Callable[..., Any]


def _unit(b: Builder, batch: Sequence[int], n: int, dtype: DType) -> Tensor:
    def body(*i: Expr) -> Expr:
        return s.select(s.eq(i[-2], i[-1]), const(1, dtype), const(0, dtype))

    return b.emit((*batch, n, n), dtype, body, part="unit")


def _reflection(b: Builder, left: Tensor, j: Axis) -> tuple[Tensor, Tensor]:
    """The Householder vector that makes column `j` zero below the diagonal, and its factor: LAPACK's v and tau."""
    *batch, m, _n = left.shape
    wide = left.dtype
    zero, one = const(0, wide), const(1, wide)

    def square(*axes: Expr) -> Expr:
        *k, r = axes
        v = load(left, [*k, r, j])
        return s.select(s.gt(r, j), s.mul(v, v), zero)

    below = b.emit(batch, wide, square, reduce=(m,), combiner="sum", part="below")

    def length(*k: Expr) -> Expr:  # with the sign that the element has not
        v = load(left, [*k, j, j])
        size = s.call("sqrt", s.add(s.mul(v, v), load(below, k)))
        reflected = s.select(s.lt(v, 0), size, s.neg(size))
        return s.select(s.eq(load(below, k), 0), v, reflected)

    beta = b.emit(batch, wide, length, part="length")

    def normal(*axes: Expr) -> Expr:
        *k, i = axes
        own, top, end = load(left, [*k, i, j]), load(left, [*k, j, j]), load(beta, k)
        flat = s.eq(load(below, k), 0)
        inner = s.div(own, s.select(flat, one, s.sub(top, end)))
        return s.select(s.gt(i, j), inner, s.select(s.eq(i, j), one, zero))

    def share(*k: Expr) -> Expr:
        end = load(beta, k)
        flat = s.eq(load(below, k), 0)
        scaled = s.div(s.sub(end, load(left, [*k, j, j])), s.select(flat, one, end))
        return s.select(flat, zero, scaled)

    v = b.emit((*batch, m), wide, normal, part="normal")
    return v, b.emit(batch, wide, share, part="tau")


def qr(b: Builder, x: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """A QR factorisation as LAPACK's geqrf: each reflection makes a column zero below the diagonal."""
    batch, m, n = matrix_sizes(x)
    wide = x.dtype.compute

    def step(b: Builder, j: Axis, states: Sequence[Tensor]) -> Any:
        left, q = states
        v, tau = _reflection(b, left, j)

        def seen(*axes: Expr) -> Expr:
            *k, c, r = axes
            return s.mul(load(v, [*k, r]), load(left, [*k, r, c]))

        def turns(*axes: Expr) -> Expr:
            *k, i, r = axes
            return s.mul(load(q, [*k, i, r]), load(v, [*k, r]))

        w = b.emit((*batch, n), wide, seen, reduce=(m,), combiner="sum", part="seen")
        u = b.emit((*batch, m), wide, turns, reduce=(m,), combiner="sum", part="turned")

        def reflected(t: Tensor, rows: Tensor, columns: Tensor) -> At:
            def body(*axes: Expr) -> Expr:
                *k, i, c = axes
                less = s.mul(s.mul(load(rows, [*k, i]), load(columns, [*k, c])), load(tau, k))
                return s.sub(load(t, axes), less)

            return body

        new = b.emit((*batch, m, n), wide, reflected(left, v, w), part="left")
        return (new, b.emit((*batch, m, m), wide, reflected(q, u, v), part="q")), ()

    start = b.emit((*batch, m, n), wide, lambda *i: raised(x, i), part="matrix")
    (found, q), _ = iterated(b, min(m, n), [start, _unit(b, batch, m, wide)], step)

    def triangle(*i: Expr) -> Expr:
        return s.select(s.le(i[-2], i[-1]), load(found, i), const(0, wide))

    if mode == "r":
        return b.result(lambda *_: const(0, wide), index=0), b.result(triangle, index=1)
    return b.result(lambda *i: load(q, i), index=0), b.result(triangle, index=1)


def _partners(n: int) -> "np.ndarray[Any, Any]":
    """[round, i]: the partner of i in each round of a round-robin tournament of n; itself where it has none."""
    m = n + n % 2
    rounds = np.empty((max(m - 1, 1), n), np.int64)
    for k in range(len(rounds)):
        order = [0, *(1 + (k + i) % (m - 1) for i in range(m - 1))] if m > 1 else [0]
        for a, c in zip(order, reversed(order), strict=True):
            if a < n:
                rounds[k, a] = c if c < n else a
    return rounds


class _Tournament(NamedTuple):
    """partner: [round, i]. steps: rounds of all sweeps."""

    n: int
    partner: Tensor
    steps: int

    def partner_of(self, step: Expr, i: Expr) -> Expr:
        met = load(self.partner, [s.mod(step, self.partner.shape[0]), i])
        return s.maximum(s.minimum(met, self.n - 1), 0)


def _tournament(b: Builder, n: int, dtype: DType) -> _Tournament:
    if n > _MOST:
        raise Unsupported(f"more than {_MOST} rows or columns")
    made = b.table(("tournament", n), "partners", lambda: _partners(n))
    sweeps = (6 if dtype is DType.F32 else 8) + math.ceil(math.log2(n + 1))
    return _Tournament(n, made, 1 if n == 1 else sweeps * made.shape[0])


_MOST = 256  # a sweep is as many steps, and each touches the whole matrix


def _tangent(own: Expr, other: Expr, between: Expr) -> Expr:
    """The tangent of the smaller angle that diagonalises a symmetric 2 x 2 matrix, for the row with diagonal element `own`; `other` is that
    of the other row."""
    flat = s.eq(between, 0)
    theta = s.div(s.sub(other, own), s.mul(s.select(flat, const(1, own.dtype), between), 2))
    root = s.call("sqrt", s.add(s.mul(theta, theta), 1))
    size = s.div(1, s.add(s.call("abs", theta), root))
    return s.select(flat, const(0, own.dtype), s.select(s.lt(theta, 0), s.neg(size), size))


def _angles(
    b: Builder, batch: Sequence[int], games: _Tournament, entries: tuple[Callable[..., Expr], Callable[..., Expr], Axis], dtype: DType
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The cosine, and the sine with the sign of the partner's part, for each row. entries: the diagonal, and the elements between two rows,
    by (batch, i, partner)."""
    diagonal, between, j = entries

    def tangent(*axes: Expr) -> Expr:
        *k, i = axes
        p = games.partner_of(j, i)
        low, high = s.minimum(i, p), s.maximum(i, p)
        t = _tangent(diagonal(*k, low), diagonal(*k, high), between(*k, low, high))
        t = s.select(s.eq(i, p), const(0, dtype), t)
        return s.select(s.lt(i, p), s.neg(t), t)

    t = b.emit((*batch, games.n), dtype, tangent, part="tangent")

    def cosine(*i: Expr) -> Expr:
        return s.div(1, s.call("sqrt", s.add(s.mul(load(t, i), load(t, i)), 1)))

    c = b.emit(t.shape, dtype, cosine, part="cosine")
    return c, b.emit(t.shape, dtype, lambda *i: s.mul(load(t, i), load(c, i)), part="sine")


def _rotated(at: At, turns: tuple[Tensor, Tensor], partner: Callable[[Expr], Expr]) -> At:
    """The columns, each combined with its partner's."""
    c, sine = turns

    def body(*axes: Expr) -> Expr:
        *k, i, j = axes
        batch = k[: len(c.shape) - 1]
        own = s.mul(at(*k, i, j), load(c, [*batch, j]))
        return s.add(own, s.mul(at(*k, i, partner(j)), load(sine, [*batch, j])))

    return body


def eigh(b: Builder, x: Tensor, uplo: str = "L", compute_v: bool = True) -> tuple[Tensor, ...]:
    batch, n, _n = matrix_sizes(x)
    wide = x.dtype.compute
    games = _tournament(b, n, wide)

    def symmetric(*axes: Expr) -> Expr:
        *k, i, j = axes
        low, high = s.minimum(i, j), s.maximum(i, j)
        return raised(x, [*k, high, low] if uplo.upper() == "L" else [*k, low, high])

    def step(b: Builder, j: Axis, states: Sequence[Tensor]) -> Any:
        a, v = states
        entries = (lambda *i: load(a, [*i, i[-1]])), (lambda *i: load(a, i)), j
        turns = _angles(b, batch, games, entries, wide)

        def partner(i: Expr) -> Expr:
            return games.partner_of(j, i)

        half = b.emit(a.shape, wide, _rotated(lambda *i: load(a, i), turns, partner), part="half")
        both = transposed(_rotated(transposed(lambda *i: load(half, i)), turns, partner))
        new = b.emit(a.shape, wide, both, part="left")
        vectors = _rotated(lambda *i: load(v, i), turns, partner)
        return (new, b.emit(a.shape, wide, vectors, part="vectors")), ()

    start = b.emit(x.shape, wide, symmetric, part="matrix")
    (found, vectors), _ = iterated(b, games.steps, [start, _unit(b, batch, n, wide)], step)
    values = b.emit((*batch, n), wide, lambda *i: load(found, [*i, i[-1]]), part="diagonal")
    order = order_of(b, values, len(batch), False, values.shape)
    ordered = b.result(lambda *i: load(values, [*i[:-1], load(order, i)]), index=0)
    if not compute_v:
        return ordered, b.result(lambda *_: const(0, wide), index=1)

    def vector(*i: Expr) -> Expr:
        return load(vectors, [*i[:-1], load(order, [*i[:-2], i[-1]])])

    return ordered, b.result(vector, index=1)


def svd(
    b: Builder, x: Tensor, full_matrices: bool = False, compute_uv: bool = True, **_: object
) -> tuple[Tensor, ...]:
    """The singular value decomposition of the matrix or, if it is wide, of the transposed one. Rotations make its columns orthogonal; their
    norms are the singular values."""
    batch, m, n = matrix_sizes(x)
    if compute_uv and full_matrices and m != n:
        raise Unsupported("full_matrices=True of a matrix that is not square")
    wide = x.dtype.compute
    k, tall = min(m, n), max(m, n)
    games = _tournament(b, k, wide)

    def elements(*i: Expr) -> Expr:
        return raised(x, i)

    def step(b: Builder, j: Axis, states: Sequence[Tensor]) -> Any:
        a, v = states

        def partner(i: Expr) -> Expr:
            return games.partner_of(j, i)

        def products(of: Callable[[Expr], Expr], part: str) -> Tensor:
            def product(*axes: Expr) -> Expr:
                *batch, i, r = axes
                return s.mul(load(a, [*batch, r, i]), load(a, [*batch, r, of(i)]))

            return b.emit((*batch, k), wide, product, reduce=(tall,), combiner="sum", part=part)

        squares, between = products(lambda i: i, "squares"), products(partner, "between")
        entries = (lambda *i: load(squares, i)), (lambda *i: load(between, i[:-1])), j
        turns = _angles(b, batch, games, entries, wide)
        new = b.emit(a.shape, wide, _rotated(lambda *i: load(a, i), turns, partner), part="left")
        vectors = _rotated(lambda *i: load(v, i), turns, partner)
        return (new, b.emit(v.shape, wide, vectors, part="vectors")), ()

    source = elements if m >= n else transposed(elements)
    start = b.emit((*batch, tall, k), wide, source, part="matrix")
    (found, v), _left = iterated(b, games.steps, [start, _unit(b, batch, k, wide)], step)

    return _singular(b, found, v, (m >= n, compute_uv))


def _singular(
    b: Builder, found: Tensor, v: Tensor, wanted: tuple[bool, bool]
) -> tuple[Tensor, ...]:
    """The results, from the orthogonal columns `found` and the accumulated rotations. wanted: whether the matrix was not transposed, and
    whether vectors are requested."""
    (*batch, tall, k), wide = found.shape, found.dtype
    upright, compute_uv = wanted

    def square(*axes: Expr) -> Expr:
        *i, r = axes
        v = load(found, [*i[:-1], r, i[-1]])
        return s.mul(v, v)

    squares = b.emit((*batch, k), wide, square, reduce=(tall,), combiner="sum", part="squares")
    lengths = b.emit((*batch, k), wide, lambda *i: s.call("sqrt", load(squares, i)), part="lengths")
    order = order_of(b, lengths, len(batch), True, lengths.shape)
    values = b.result(lambda *i: load(lengths, [*i[:-1], load(order, i)]), index=1)
    if not compute_uv:
        u, vh = (b.result(lambda *_: const(0, wide), index=index) for index in (0, 2))
        return u, values, vh

    def unit(*i: Expr) -> Expr:
        own = load(found, [*i[:-1], load(order, [*i[:-2], i[-1]])])
        size = load(values, [*i[:-2], i[-1]])
        return s.select(s.eq(size, 0), const(0, wide), s.div(own, size))

    columns = _completed(b, b.emit(found.shape, wide, unit, part="columns"), values)

    def left(*i: Expr) -> Expr:
        return load(columns, i)

    def right(*i: Expr) -> Expr:
        return load(v, [*i[:-1], load(order, [*i[:-2], i[-1]])])

    u, vh = (left, transposed(right)) if upright else (right, transposed(left))
    return b.result(u, index=0), values, b.result(vh, index=2)


def _completed(b: Builder, x: Tensor, values: Tensor) -> Tensor:
    """The columns of `x`, with those of zero singular values replaced by unit vectors orthogonal to all others: what is left of the
    coordinate axis with the largest remainder."""
    (*batch, tall, k), wide = x.shape, x.dtype

    def step(b: Builder, j: Axis, states: Sequence[Tensor]) -> Any:
        (u,) = states

        def taken(*axes: Expr) -> Expr:
            *i, c = axes
            return s.mul(load(u, [*i, c]), load(u, [*i, c]))

        share = b.emit((*batch, tall), wide, taken, reduce=(k,), combiner="sum", part="taken")
        least = b.emit(batch, DType.I64, lambda *i: load(share, i), reduce=(tall,), combiner="argmin", part="least")  # fmt: skip

        def along(*axes: Expr) -> Expr:
            *i, r, c = axes
            return s.mul(load(u, [*i, r, c]), load(u, [*i, load(least, i), c]))

        shadow = b.emit((*batch, tall), wide, along, reduce=(k,), combiner="sum", part="shadow")

        def rest(*axes: Expr) -> Expr:
            *i, r = axes
            own = s.select(s.eq(r, load(least, i)), const(1, wide), const(0, wide))
            return s.sub(own, load(shadow, axes))

        def square(*axes: Expr) -> Expr:
            return s.mul(rest(*axes), rest(*axes))

        squares = b.emit(batch, wide, square, reduce=(tall,), combiner="sum", part="rest")

        def column(*axes: Expr) -> Expr:
            *i, r, c = axes
            new = s.div(rest(*i, r), s.call("sqrt", load(squares, i)))
            missing = s.both(s.eq(c, j), s.eq(load(values, [*i, c]), 0))
            return s.select(missing, new, load(u, axes))

        return (b.emit(x.shape, wide, column, part="columns"),), ()

    (found,), _ = iterated(b, k, [x], step)
    return found


LOWERINGS: Mapping[str, Lowering] = {
    "aten.linalg_qr.default": qr,
    "aten._linalg_eigh.default": eigh,
    "aten._linalg_svd.default": svd,
}
