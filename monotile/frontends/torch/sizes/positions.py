"""Tensors of positions: each element is a function of its index and of sizes, as in `arange` and what is computed from it.

What a size leaves out of a tensor may be anything in memory, and no index. Where an index is a position, it is computed instead, and known to be in range.
"""

from monotile.analysis.cost import cost
from monotile.ir.expr import Expr, Load, SizeTensor, loads, map_loads, substitute
from monotile.ir.intervals import NOTHING_KNOWN, Interval, Ranges
from monotile.ir.program import Compute
from monotile.transform.simplify.simplify import simplify_expr

MOST = 16.0  # operations that are repeated for each index


class Positions:
    """The positions among a Program's statements so far. An element is computed when an index reads it."""

    def __init__(self) -> None:
        self._made: dict[str, Compute] = {}
        self._known: dict[str, Expr | None] = {}

    def learn(self, c: Compute) -> None:
        if c.combiner is None and c.body.dtype.is_int and c.out.dtype is c.body.dtype:
            self._made[c.out.name] = c

    def index(self, e: Expr, extent: int) -> Expr | None:
        """An expression for `e` without Loads, if `e` is a position within `extent` in every call."""
        found = self._computed(e)
        return found if found is not None and _in_range(found, extent) else None

    def _computed(self, e: Expr) -> Expr | None:
        """`e` without Loads except of sizes; None if that is impossible."""

        def put(x: Load) -> Expr:
            element = None if isinstance(x.tensor, SizeTensor) else self._element(x.tensor.name)
            if element is None:
                return x
            axes = self._made[x.tensor.name].axes
            return substitute(element, {a.name: i for a, i in zip(axes, x.index, strict=True)})

        every = (x.tensor for x in loads(e))
        if any(not isinstance(t, SizeTensor) and self._element(t.name) is None for t in every):
            return None
        found = simplify_expr(map_loads(e, put))
        return found if cost(found) <= MOST else None

    def _element(self, name: str) -> Expr | None:
        """The element of the tensor in terms of its axes."""
        if name not in self._known and name in self._made:
            self._known[name] = self._computed(self._made[name].body)
        return self._known.get(name)


def _in_range(e: Expr, extent: int) -> bool:
    sizes = {x.tensor.name: x.tensor for x in loads(e)}
    ends = {n: Interval(t.least, t.most) for n, t in sizes.items() if isinstance(t, SizeTensor)}
    found = Ranges(NOTHING_KNOWN, ends).of(e)
    return found is not None and found.inside(0, extent - 1)
