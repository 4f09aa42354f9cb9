"""Roles of a Scatter's axes: those along which writes may collide, and those that only determine the written value."""

import math
from dataclasses import dataclass

from monotile.analysis.dependence import apart
from monotile.ir.expr import Axis, Expr, axes_of, loads
from monotile.ir.program import Scatter


@dataclass(frozen=True, slots=True)
class Roles:
    """Positions of a Scatter's axes by role. terms: axes along which writes may collide; their points, row-major, are the terms of the
    sums. scattered: dimensions of the result whose index depends on these. outer: axes that separate writes and on which these indices
    depend as well; each point of them has a list of indices of its own. features: all other axes, which share the indices."""

    terms: tuple[int, ...]
    scattered: tuple[int, ...]
    outer: tuple[int, ...]
    features: tuple[int, ...]

    def count(self, s: Scatter) -> int:
        """The number of terms."""
        return math.prod(s.axes[p].extent for p in self.terms)

    def positions(self, s: Scatter) -> int:
        """The number of positions of the scattered dimensions, flattened row-major."""
        return math.prod(s.out.shape[d] for d in self.scattered)


def roles_of(s: Scatter) -> Roles | None:
    """The roles of the axes; None if no writes collide, if the written value depends on the updated tensor, or if nothing is scattered."""
    alone = apart(s)
    terms = tuple(p for p in range(len(s.axes)) if p not in alone)
    met = frozenset(s.axes[p] for p in terms)
    scattered = tuple(d for d, i in enumerate(s.index) if _axes(i) & met)
    own = {s.base, s.out}
    if not terms or not scattered or 0 in s.out.shape or not all(a.extent for a in s.axes):
        return None
    if any(x.tensor in own for e in (*s.index, s.value) for x in loads(e)):
        return None
    decide = frozenset[Axis]().union(*(_axes(s.index[d]) for d in scattered))
    outer = tuple(p for p in sorted(alone) if s.axes[p] in decide)
    return Roles(terms, scattered, outer, tuple(p for p in sorted(alone) if p not in outer))


def _axes(e: Expr) -> frozenset[Axis]:
    return frozenset(axes_of(e))
