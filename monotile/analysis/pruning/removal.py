"""Decides what to remove: for each class the coordinates to keep.

Products keep extents that suit vectors and tensor cores: a dimension that is a multiple of 16 elements, or of a smaller power of two,
remains one. Layers that were equal before keep equally many coordinates, so that they still roll into one loop, unless that would keep
over half of what could be removed.
"""

from collections import defaultdict
from collections.abc import Mapping
from math import gcd

import msgspec
import numpy as np
from numpy.typing import NDArray

from monotile.analysis.pruning.classes import Classes, Members
from monotile.analysis.pruning.dead import Sweeps
from monotile.analysis.pruning.factors import Dimension, Factor, Factors
from monotile.analysis.pruning.facts import Facts, Mask
from monotile.ir.program import Program

GRAIN = 16  # elements that a product instruction takes at once, along any of its dimensions
Kept = NDArray[np.int64]


class Removal(msgspec.Struct, frozen=True):
    """kept: maps each factor that shrinks to the kept coordinates, ascending. classes: the members of each class that shrinks."""

    factors: Factors
    kept: Mapping[Factor, Kept]
    classes: tuple[Members, ...]

    @property
    def dimensions(self) -> dict[Dimension, tuple[int, ...]]:
        """Maps each dimension that shrinks to its new factors, the outermost first."""
        found = dict.fromkeys(f[:2] for f in self.kept)
        return {
            d: tuple(
                len(self.kept[(*d, k)]) if (*d, k) in self.kept else n
                for k, n in enumerate(self.factors.of(d))
            )
            for d in found
        }

    def coordinates(self, d: Dimension) -> Kept:
        """The kept coordinates of a dimension, ascending."""
        out = np.zeros(1, np.int64)
        for k, n in enumerate(self.factors.of(d)):
            digit = self.kept.get((*d, k), np.arange(n))
            out = (out[:, None] * n + digit[None, :]).reshape(-1)
        return out

    def same(self, other: "Removal") -> bool:
        """Whether both remove the same."""
        if self.kept.keys() != other.kept.keys():
            return False
        return all(np.array_equal(x, other.kept[f]) for f, x in self.kept.items())


def removal(program: Program, facts: Facts, factors: Factors | None = None) -> Removal:
    """What can be removed of `program`, given its parameters' zeros."""
    factors = factors or Factors(program)
    if not any(zeros.mask.any() for zeros in facts.values()):
        return Removal(factors, {}, ())
    classes = Classes(program, factors)
    live = Sweeps(program, factors, facts).live
    weights = {w.tensor.name for w in program.weights}
    dead = [
        (m, classes.dead(m, live))
        for m in classes.members
        if classes.units(m) > 1 and any(f[0] in weights for f in m)
    ]
    groups: dict[object, list[tuple[Members, Mask]]] = defaultdict(list)
    for m, d in dead:
        groups[_signature(m, classes)].append((m, d))
    kept: dict[Factor, Kept] = {}
    shrunk: list[Members] = []
    for group in groups.values():
        counts = [_rounded(m, int((~d).sum()), classes) for m, d in group]
        units = len(group[0][1])
        if 2 * (units - max(counts)) * len(group) >= sum(units - c for c in counts):
            counts = [max(counts)] * len(counts)
        for (m, d), count in zip(group, counts, strict=True):
            if count < units:
                stay = _first(d, count)
                kept |= dict.fromkeys(m, stay)
                shrunk.append(m)
    return Removal(factors, kept, tuple(shrunk))


def _signature(m: Members, classes: Classes) -> object:
    """Equal for the classes of equal layers: the extents of a class's dimensions, and the position of the factor in them."""
    return tuple(sorted((classes.shape(f), f[1:]) for f in m))


def _rounded(m: Members, live: int, classes: Classes) -> int:
    """The number of units to keep: at least the live ones, and one."""
    units, step = classes.units(m), 1
    for f in m:
        outer, n, inner = classes.shape(f)
        grain = gcd(outer * n * inner, GRAIN)
        while grain > 1 and 4 * grain > outer * n * inner:
            grain //= 2
        step = max(step, grain // gcd(grain, inner))
    most = max(live, 1)
    return min(-(-most // step) * step, units)


def _first(dead: Mask, count: int) -> Kept:
    """All live units, and the first dead ones, up to so many."""
    stay = ~dead
    stay[np.flatnonzero(dead)[: count - int(stay.sum())]] = True
    return np.flatnonzero(stay).astype(np.int64)
