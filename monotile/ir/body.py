"""Evaluates a scalar expression over a grid of its axes, in NumPy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from monotile.errors import IndexOutOfRangeError, VerificationError
from monotile.ir import scalar
from monotile.ir.expr import Axis, Binary, Cast, Const, Expr, Load, Select, Tensor, Unary, loads
from monotile.ir.scalar import Array


def lookup(env: Mapping[str, Array], t: Tensor) -> Array:
    if t.name not in env:
        raise VerificationError(f"{t.name!r} is used before it is defined")
    return env[t.name]


def grid(
    axes: Sequence[Axis], box: Sequence[slice], loops: Mapping[str, Array]
) -> dict[str, Array]:
    """The value of each axis inside `box`, shaped to broadcast along its own dimension."""
    out = dict(loops)
    for k, (axis, part) in enumerate(zip(axes, box, strict=True)):
        shape = [1] * len(axes)
        shape[k] = part.stop - part.start
        out[axis.name] = np.arange(part.start, part.stop, dtype=np.int64).reshape(shape)
    return out


@dataclass
class Body:
    """Evaluates one body over one grid. A `mask` says where the value is needed; elsewhere Loads read nothing."""

    env: Mapping[str, Array]
    grid: Mapping[str, Array]
    origin: str

    def __post_init__(self) -> None:
        # Keyed by identity, because bodies share subexpressions. The keys stay alive: nodes in the body, masks here.
        self.known: dict[tuple[int, int], tuple[Array, Array | None]] = {}

    def value(self, e: Expr, mask: Array | None) -> Array:
        key = (id(e), id(mask))
        if key not in self.known:
            self.known[key] = (self._value(e, mask), mask)
        return self.known[key][0]

    def _value(self, e: Expr, mask: Array | None) -> Array:
        match e:
            case Const(value, dtype):
                return scalar.constant(value, dtype)
            case Axis(name):
                if name not in self.grid:
                    raise VerificationError(
                        f"axis {name!r} is not one of its statement or of a loop"
                    )
                return self.grid[name]
            case Cast(x, dtype):
                return scalar.convert(self.value(x, mask), dtype)
            case Unary(op, x):
                return scalar.unary(op, self.value(x, mask), x.dtype)
            case Binary("and" | "or" as op, a, b):
                left = self.value(a, mask)
                further = left if op == "and" else ~left
                return scalar.binary(op, left, self.value(b, _both(mask, further)), a.dtype)
            case Binary(op, a, b):
                return scalar.binary(op, self.value(a, mask), self.value(b, mask), a.dtype)
            case Select(cond, then, otherwise):
                c = self.value(cond, mask)
                t = self.value(then, _both(mask, c))
                o = self.value(otherwise, _both(mask, ~c))
                return np.where(c, t, o)
            case Load():
                return self._load(e, mask)

    def _load(self, e: Load, mask: Array | None) -> Array:
        x = lookup(self.env, e.tensor)
        where = tuple(
            self.index(i, n, mask, e.tensor.name)
            for i, n in zip(e.index, e.tensor.shape, strict=True)
        )
        if x.size == 0:  # `index` has checked that no element is needed
            return np.zeros((), x.dtype)
        return np.asarray(x[where])

    def index(self, e: Expr, extent: int, mask: Array | None, name: str) -> Array:
        """The index `e`, checked where it is needed and 0 elsewhere."""
        i = self.value(e, mask)
        inside = (i >= 0) & (i < extent)
        bad = ~inside if mask is None else ~inside & mask
        if bad.any():
            found = int(np.broadcast_to(i, bad.shape)[bad].flat[0])
            kind = IndexOutOfRangeError if loads(e) else VerificationError
            at = f", at {self.origin}" if self.origin else ""
            raise kind(f"index {found} is out of range for {name} of extent {extent}{at}")
        return np.where(inside, i, 0)


def _both(mask: Array | None, further: Array) -> Array:
    return further if mask is None else mask & further
