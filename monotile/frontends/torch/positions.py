"""Tensors of positions: each element follows from its place and from sizes, as in `arange` and what is counted on from it.

What a size leaves out of a tensor may be anything in memory, and no index. Where an index is a position, it is computed instead, and known to be in range.
"""

from monotile.analysis.cost import cost
from monotile.ir.expr import Axis, Expr, Load, SizeTensor, loads, map_loads, substitute
from monotile.ir.intervals import NOTHING_KNOWN, Interval, Ranges
from monotile.ir.program import Compute
from monotile.transform.simplify.simplify import simplify_expr

MOST = 16.0  # operations that are done again for each index


class Positions:
    """known: an element of each such tensor, by name, with its axes."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[tuple[Axis, ...], Expr]] = {}

    def learn(self, c: Compute) -> None:
        if c.combiner is None and c.body.dtype.is_int and c.out.dtype is c.body.dtype:
            body = self.computed(c.body)
            if body is not None:
                self.known[c.out.name] = c.axes, body

    def index(self, e: Expr, extent: int) -> Expr | None:
        """The same as `e`, computed, if that is a position that is an index of `extent` in every call."""
        found = self.computed(e)
        return found if found is not None and _in_range(found, extent) else None

    def computed(self, e: Expr) -> Expr | None:
        """`e` without Loads but of sizes, if that is what it is."""

        def put(x: Load) -> Expr:
            axes, element = self.known.get(x.tensor.name, ((), None))
            if element is None:
                return x
            return substitute(element, {a.name: i for a, i in zip(axes, x.index, strict=True)})

        if any(
            not isinstance(x.tensor, SizeTensor) and x.tensor.name not in self.known
            for x in loads(e)
        ):
            return None
        found = simplify_expr(map_loads(e, put))
        return found if cost(found) <= MOST else None


def _in_range(e: Expr, extent: int) -> bool:
    sizes = {x.tensor.name: x.tensor for x in loads(e)}
    ends = {n: Interval(t.least, t.most) for n, t in sizes.items() if isinstance(t, SizeTensor)}
    found = Ranges(NOTHING_KNOWN, ends).of(e)
    return found is not None and found.inside(0, extent - 1)
