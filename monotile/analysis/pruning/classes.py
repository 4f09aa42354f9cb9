"""Equivalence classes of dimension factors that must keep the same coordinates."""

from collections.abc import Mapping
from math import prod

import numpy as np

from monotile.analysis.affine import Affine
from monotile.analysis.pruning.factors import (
    Dimension,
    Factor,
    Factors,
    axes_by_name,
    axis_of,
    own_axes,
)
from monotile.analysis.pruning.facts import Mask
from monotile.ir.expr import Axis
from monotile.ir.program import (
    Branch,
    Compute,
    Loop,
    Program,
    Scatter,
    Weight,
    defined,
    statements,
    used,
    wholes,
)

Members = tuple[Factor, ...]


class Classes:
    """factors: of the Program's dimensions. members: of each class that is not pinned, in the order of the Program."""

    def __init__(self, program: Program, factors: Factors) -> None:
        self.factors = factors
        self._of: dict[Factor, Factor] = {}
        self._pinned: set[Factor] = set()
        for s in factors.computes:
            self._compute(s)
        fixed = fixed_tensors(program)
        found: dict[Factor, list[Factor]] = {}
        for d in factors.extents:
            for k in range(len(factors.of(d))):
                root = self._find((*d, k))
                found.setdefault(root, []).append((*d, k))
                if d[0] in fixed and d[1] < fixed[d[0]]:
                    self._pinned.add(root)
        pinned = {self._find(f) for f in self._pinned}
        self.members: list[Members] = [tuple(fs) for f, fs in found.items() if f not in pinned]

    def units(self, members: Members) -> int:
        """The number of coordinates of each of a class's factors."""
        return self.extent(members[0])

    def extent(self, f: Factor) -> int:
        return self.factors.of(f[:2])[f[2]]

    def shape(self, f: Factor) -> tuple[int, int, int]:
        """The dimension as [outer, factor, inner] extents."""
        at = self.factors.of(f[:2])
        return prod(at[: f[2]]), at[f[2]], prod(at[f[2] + 1 :])

    def dead(self, members: Members, live: Mapping[Dimension, Mask]) -> Mask:
        """The units that are dead along all of their dimensions."""
        out = np.ones(self.units(members), bool)
        for f in members:
            if f[:2] in live:
                out &= ~live[f[:2]].reshape(self.shape(f)).any((0, 2))
            else:
                out[:] = False
        return out

    def _find(self, f: Factor) -> Factor:
        while (up := self._of.get(f, f)) != f:
            self._of[f] = f = self._of.get(up, up)
        return f

    def _join(self, a: Factor, b: Factor) -> None:
        self._of[self._find(a)] = self._find(b)

    def _compute(self, s: Compute) -> None:
        axes, split = axes_by_name(s), self.factors.split(s)
        self._pin_axes(own_axes(s.body), axes)
        for x in self.factors.places(s):
            for d, digits in enumerate(self.factors.digits(s, x, split)):
                dim = x.load.tensor.name, d
                if digits is None:
                    self._pin(dim)
                    self._pin_axes(own_axes(x.load.index[d]), axes)
                    continue
                for k, digit in enumerate(digits):
                    self._digit((*dim, k), digit, axes)

    def _digit(self, f: Factor, digit: Affine, axes: Mapping[str, tuple[Axis, Dimension]]) -> None:
        match digit:
            case Affine(((Axis() as a, 1),), 0) if a.extent == self.extent(f):
                name, k = axis_of(a)
                self._join(f, (*axes[name][1], k))
            case _:
                self._pinned.add(f)
                for a, _ in digit.terms:
                    assert isinstance(a, Axis)
                    name, k = axis_of(a)
                    self._pinned.add((*axes[name][1], k))

    def _pin(self, d: Dimension) -> None:
        self._pinned |= {(*d, k) for k in range(len(self.factors.of(d)))}

    def _pin_axes(self, which: frozenset[Axis], axes: Mapping[str, tuple[Axis, Dimension]]) -> None:
        for a in which:
            if a.name in axes:
                self._pin(axes[a.name][1])


def fixed_tensors(program: Program) -> dict[str, int]:
    """The tensors that keep their shapes, by name, with their number of dimensions: those that no Compute defines, those used as a
    whole, and weights that are states, tables or not floating-point."""
    kept = [*program.inputs, *program.outputs]
    kept += [w.tensor for w in program.weights if not _may_shrink(program, w)]
    for s in statements(program.body):
        kept += wholes(s)
        match s:
            case Compute():
                kept += [s.out] if s.live or 0 in s.out.shape else []
            case Scatter():
                kept += [*defined(s), *used(s)]
            case Loop():
                kept += [*defined(s), *(c.param for c in s.carried)]
            case Branch():
                kept += defined(s)
    return {t.name: len(t.shape) for t in kept}


def _may_shrink(program: Program, w: Weight) -> bool:
    ours = w.tensor.dtype.is_float and not w.tensor.dtype.is_float8
    return ours and not w.table and w.parts[0] not in program.states
