"""The coordinates of a dimension that an index reaches."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from monotile.analysis.pruning.facts import Mask
from monotile.ir.expr import Axis, Binary, Const, Expr, axes_of, loads

Live = Mapping[str, Mask]  # of each axis, by name
MOST = 1 << 22  # points at which an index is evaluated

_OPERATIONS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "min": np.minimum,
    "max": np.maximum,
}


def reached(index: Expr, extent: int, live: Live) -> Mask:
    """The coordinates that `index` has at any live coordinates of its axes; all of them where that is not known."""
    match index:
        case Axis(name, n) if name in live and n == extent:
            return live[name]
        case _:
            found = along(index, None, live)
            return np.ones(extent, bool) if found is None else _marked(found, extent)


def along(index: Expr, axis: Axis | None, live: Live) -> NDArray[np.int64] | None:
    """The values of `index` at all live coordinates, one row for each coordinate of `axis` (None: one row). None where they are not
    known."""
    if loads(index):
        return None
    others = sorted(axes_of(index) - {axis}, key=lambda a: a.name)
    sizes = [int(live[a.name].sum()) if a.name in live else a.extent for a in others]
    rows = 1 if axis is None else axis.extent
    if rows * int(np.prod(sizes, dtype=np.int64)) > MOST:
        return None
    rank = 1 + len(others)
    values: dict[str, NDArray[np.int64]] = {}
    for k, a in enumerate(others):
        at = np.flatnonzero(live[a.name]) if a.name in live else np.arange(a.extent)
        values[a.name] = at.reshape([-1 if d == k + 1 else 1 for d in range(rank)])
    if axis is not None:
        values[axis.name] = np.arange(axis.extent).reshape([-1] + [1] * len(others))
    found = _evaluated(index, values)
    if found is None:
        return None
    return np.broadcast_to(found, (rows, *sizes)).reshape(rows, -1)


def _evaluated(e: Expr, values: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64] | None:
    match e:
        case Const(value):
            return np.asarray(int(value))
        case Axis(name):
            return values[name]
        case Binary(op, a, b) if op in _OPERATIONS:
            x, y = _evaluated(a, values), _evaluated(b, values)
            if x is None or y is None or (op in ("floordiv", "mod") and (y == 0).any()):
                return None
            return np.asarray(_OPERATIONS[op](x, y))
        case _:
            return None


def _marked(at: NDArray[np.int64], extent: int) -> Mask:
    """Coordinates that are out of bounds are never read: a Select around the Load ensures that."""
    out = np.zeros(extent, bool)
    out[at[(at >= 0) & (at < extent)]] = True
    return out
