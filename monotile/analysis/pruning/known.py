"""The value of an expression along one axis, where it is constant for all live coordinates of the other axes.

0 times anything is 0, since values are taken to be finite; so is 0 divided by anything. Other constants follow the evaluator's
arithmetic.
"""

from typing import NamedTuple, Protocol

import numpy as np

from monotile.analysis.pruning.coordinates import Live, along
from monotile.analysis.pruning.facts import Array, Mask
from monotile.ir import scalar
from monotile.ir.dtype import DType
from monotile.ir.expr import (
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Symbolic,
    SymbolicNumber,
    Tensor,
    Unary,
    axes_of,
)


class Known(NamedTuple):
    """Along one axis, or dimension: at which coordinates the value is known, and its values there."""

    where: Mask
    value: Array

    @property
    def zero(self) -> Mask:
        return self.where & (self.value == 0)


class Source(Protocol):
    """Known values of tensors."""

    def silent(self, tensor: Tensor) -> bool:
        """Whether nothing is known of it."""
        ...

    def known(self, load: Load, d: int, live: Live) -> Known | None:
        """Known values along dimension d of the loaded tensor, at those coordinates of the others that the Load reaches; None for
        nothing."""
        ...


def nothing(extent: int, dtype: DType) -> Known:
    return Known(np.zeros(extent, bool), np.zeros(extent, dtype.numpy))


class Along:
    """Known values of expressions along an axis."""

    def __init__(self, axis: Axis, live: Live, source: Source) -> None:
        self._axis, self._live, self._source = axis, live, source
        self._seen: dict[Expr, Known] = {}

    def of(self, e: Expr) -> Known:
        if e not in self._seen:
            with np.errstate(**scalar.QUIET):
                self._seen[e] = self._of(e)
        return self._seen[e]

    def _of(self, e: Expr) -> Known:
        n = self._axis.extent
        match e:
            case Const(Symbolic() | SymbolicNumber()):
                return nothing(n, e.dtype)
            case Const(value):
                found = np.broadcast_to(scalar.constant(value, e.dtype), n)
                return Known(np.ones(n, bool), found)
            case Axis():
                return Known(np.full(n, e == self._axis), np.arange(n))
            case Load():
                return self._load(e)
            case Cast(x, dtype) if dtype.is_float8 or x.dtype.is_float8:
                return nothing(n, dtype)
            case Cast(x, dtype):
                inner = self.of(x)
                return _settled(inner.where, scalar.convert(inner.value, dtype))
            case Unary(op, x):
                inner = self.of(x)
                return _settled(inner.where, scalar.unary(op, inner.value, x.dtype))
            case Binary(op, a, b):
                return self._binary(op, a, b)
            case Select(cond, then, otherwise):
                return _chosen(self.of(cond), self.of(then), self.of(otherwise))

    def _binary(self, op: str, a: Expr, b: Expr) -> Known:
        x, y = self.of(a), self.of(b)
        both = x.where & y.where
        found = _settled(both, scalar.binary(op, x.value, y.value, a.dtype))
        match op:
            case "mul":
                return _with(found, x.zero | y.zero, 0)
            case "div":
                return _with(found, x.zero & ~y.where, 0)
            case "and":
                return _with(found, x.zero | y.zero, 0)
            case "or":
                decided = (x.where & (x.value != 0)) | (y.where & (y.value != 0))
                return _with(found, decided, 1)
            case _:
                return found

    def _load(self, e: Load) -> Known:
        n = self._axis.extent
        out = nothing(n, e.dtype)
        if self._source.silent(e.tensor):
            return out
        for d, index in enumerate(e.index):
            known = self._source.known(e, d, self._live)
            if known is None or not known.where.any():
                continue
            out = _either(out, self._read(index, known))
        return out

    def _read(self, index: Expr, known: Known) -> Known:
        """Known values along a dimension, read at an index."""
        n, extent = self._axis.extent, len(known.where)
        if index == self._axis and n == extent:
            return known
        at = along(index, self._axis if self._axis in axes_of(index) else None, self._live)
        if at is None:  # any coordinate
            same = known.where.all() and (known.value == known.value[0]).all()
            return Known(np.full(n, bool(same)), np.broadcast_to(known.value[0], n))
        if at.shape[1] == 0:
            return nothing(n, DType.from_numpy(known.value.dtype))
        inside = (at >= 0) & (at < extent)
        clipped = np.where(inside, at, 0)
        first = clipped[np.arange(len(at)), inside.argmax(1)]
        value = known.value[first]
        same = (known.value[clipped] == value[:, None]) & known.where[clipped]
        where = (same | ~inside).all(1) & inside.any(1)
        return Known(
            np.broadcast_to(where, n).copy(), np.broadcast_to(np.where(where, value, 0), n)
        )


def merged(before: Known, now: Known, live: Mask) -> Known:
    """`now` where it is live, and elsewhere the values known before it was dead."""
    where = np.where(live, now.where, before.where)
    return Known(where, np.where(live, now.value, before.value).astype(now.value.dtype))


def _settled(where: Mask, value: Array) -> Known:
    """With NaN and infinities marked as unknown."""
    finite = np.isfinite(value.astype(float))
    where = where & finite
    return Known(where, np.where(where, value, np.zeros((), value.dtype)).astype(value.dtype))


def _with(x: Known, where: Mask, value: int) -> Known:
    return Known(x.where | where, np.where(where, value, x.value).astype(x.value.dtype))


def _either(x: Known, y: Known) -> Known:
    value = np.where(x.where, x.value, y.value.astype(x.value.dtype)).astype(x.value.dtype)
    return Known(x.where | y.where, value)


def _chosen(cond: Known, then: Known, otherwise: Known) -> Known:
    taken, left = cond.where & (cond.value != 0), cond.where & (cond.value == 0)
    same = then.where & otherwise.where & (then.value == otherwise.value)
    where = (taken & then.where) | (left & otherwise.where) | same
    value = np.where(left, otherwise.value, then.value)
    return Known(where, np.where(where, value, 0).astype(then.value.dtype))


def reduced(combiner: str | None, body: Known, dtype: DType) -> Known:
    """Results in `dtype` of reductions whose terms all have this value."""
    match combiner:
        case None | "max" | "min":
            where = body.where
        case "sum":
            where = body.zero
        case _:
            return nothing(len(body.where), dtype)
    if dtype.is_float8:
        return nothing(len(body.where), dtype)
    return _settled(where, scalar.convert(np.where(where, body.value, 0), dtype))
