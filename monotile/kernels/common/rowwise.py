"""Computes that work row by row: normalisations, softmax, and element-wise statements around them.

Their axes are those of rows, then, in wide tensors, those along a row (the span). Each element depends on its own position in other wide
tensors and on reductions of its own row. One wide tensor may be given: the sums of a product whose epilogue this is.
"""

import math
from collections.abc import Sequence

import msgspec

from monotile.analysis.dependence import loads_of
from monotile.ir.expr import Axis, Expr, Load, idx
from monotile.ir.program import Compute

COMBINERS = frozenset({"sum", "prod", "max", "min"})
POSITIONS = frozenset(
    {"argmax", "argmin"}
)  # of rows of a given tensor, which the lanes of a warp hold


class Rowwise(msgspec.Struct, frozen=True):
    """rows: how many leading axes number the rows. span: extents along a row. order: the Computes in an order of evaluation. given: the
    name of the first one, "" for none, whose elements are available before."""

    rows: int
    span: tuple[int, ...]
    order: tuple[Compute, ...]
    given: str = ""

    def wide(self, s: Compute) -> bool:
        """Whether `s` has an element for each of a row; else it has one for the row, and further axes of extent 1."""
        if s.reduce and s.out.name != self.given:
            return False
        return tuple(a.extent for a in s.axes[self.rows :]) == self.span

    @property
    def evaluated(self) -> tuple[Compute, ...]:
        """All but the given one."""
        return self.order[1:] if self.given else self.order

    @property
    def sums(self) -> int:
        """How many of a row's values its lanes reduce."""
        return sum(bool(s.reduce) for s in self.evaluated)

    @property
    def anchor(self) -> Compute:
        """The first wide one."""
        return next(s for s in self.order if self.wide(s))

    def along(self, s: Compute) -> tuple[Axis, ...]:
        """The axes of `s` that run along a row, reduced or not."""
        return s.axes[self.rows :] if self.wide(s) else s.reduce

    def by_name(self, name: str) -> Compute:
        return next(s for s in self.order if s.out.name == name)

    @property
    def names(self) -> "tuple[int, tuple[int, ...], tuple[str, ...]]":
        """The fields that a method stores of it: rows, span, and the order of evaluation by name."""
        return self.rows, self.span, tuple(s.out.name for s in self.order)

    @property
    def listed(self) -> tuple[str, ...]:
        """Names: one-per-row values, then the wide ones."""
        return tuple(
            s.out.name for wide in (False, True) for s in self.order if self.wide(s) is wide
        )


def rowwise(computes: Sequence[Compute], given: Compute | None = None) -> Rowwise | None:
    """`computes` as such, with a reduction and a wide tensor among them; None if they are not. given: the one of these that is available
    before."""
    name = given.out.name if given else ""
    own = {s.out.name: s for s in computes}
    evaluated = [s for s in computes if s.out.name != name]
    span = next((tuple(r.extent for r in s.reduce) for s in evaluated if s.reduce), ())
    wides = [given] if given else [s for s in computes if not s.reduce]
    ends = [s for s in wides if _extents(s)[-len(span) :] == span]
    if not ends or math.prod(span) <= 1:
        return None
    wide = max(ends, key=lambda s: len(s.axes))  # there may be as many rows as a row is long
    rows = len(wide.axes) - len(span)
    found = Rowwise(rows, span, tuple(computes), name)
    if not all(_is_row(s, wide, found) for s in evaluated):
        return None
    for s in evaluated:
        for x in loads_of(s):
            if x.tensor.name in own and not _in_place(x, s, own[x.tensor.name], found):
                return None
    order = _ordered(evaluated, (given,) if given else ())
    return None if order is None else Rowwise(rows, span, order, name)


def _is_row(s: Compute, wide: Compute, found: Rowwise) -> bool:
    """Whether `s` has the rows that `wide` has, and in each one element, as many as `wide`, or a single one computed from these."""
    rows, rest = _extents(s)[: found.rows], _extents(s)[found.rows :]
    if rows != _extents(wide)[: found.rows] or not (found.wide(s) or all(n == 1 for n in rest)):
        return False
    along = tuple(r.extent for r in s.reduce)
    combiners = COMBINERS | POSITIONS if found.given else COMBINERS
    return not s.reduce or (s.combiner in combiners and along == found.span)


def _extents(s: Compute) -> tuple[int, ...]:
    return tuple(a.extent for a in s.axes)


def _in_place(x: Load, reader: Compute, made: Compute, found: Rowwise) -> bool:
    """Whether `x` is the element of the result of `made` at the reader's position, or that of its row."""
    along = found.along(reader) if found.wide(made) else ()
    if found.wide(made) and not along:
        return False
    axes = (*reader.axes[: found.rows], *along)
    ones = x.index[len(axes) :]
    return all(_at(i, a) for i, a in zip(x.index, axes, strict=False)) and all(
        i == idx(0) or (isinstance(i, Axis) and i.extent == 1) for i in ones
    )


def _at(index: Expr, axis: Axis) -> bool:
    return index == axis or (axis.extent == 1 and index == idx(0))


def _ordered(
    computes: Sequence[Compute], before: tuple[Compute, ...]
) -> tuple[Compute, ...] | None:
    """Everything after its operands, all of it after `before`."""
    left, out = list(computes), [*before]
    while left:
        names = {s.out.name for s in left}
        ready = [s for s in left if not names & {x.tensor.name for x in loads_of(s)}]
        if not ready:
            return None
        out.extend(ready)
        left = [s for s in left if s not in ready]
    return tuple(out)
