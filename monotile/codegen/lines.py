"""Where memory accesses are linear along a CPU loop, for settling methods and emitting loops.

A Load is straight along a variable if its address is a sum in which the variable occurs only as a linear term. Quotients and remainders
of a flattened index are not. Where they change only every so many positions, the loop is cut there, and its parts are straight.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from monotile.analysis.affine import Affine, affine
from monotile.codegen.address import stored
from monotile.codegen.expression import is_index
from monotile.codegen.site import Point
from monotile.codegen.view import View
from monotile.ir.expr import (
    Axis,
    Binary,
    Const,
    Expr,
    Load,
    add,
    children,
    idx,
    loads,
    mul,
    substitute,
)
from monotile.ir.intervals import interval

SHORTEST = 4  # iterations of an innermost loop for which a flattened one is cut
LONG = 16  # iterations of one in which quotients by less may stay


@dataclass(frozen=True, slots=True)
class Lines:
    """The memory accesses of a stage's tasks along loops. view: of the stage."""

    view: View

    def offset(self, e: Load) -> Affine:
        """The offset of a Load without data-dependent indices; for a tensor in a register, its own."""
        if not stored(self.view.places[e.tensor.name]):
            return Affine(())
        return self.view.offset(e.tensor, e.index, self.view.place(e.tensor))

    def straight(self, e: Expr, variable: Axis) -> bool:
        """Whether every index in `e` is a sum in which `variable` occurs only as a linear term."""
        if isinstance(e, Load):
            if any(loads(i) for i in e.index):
                return all(self.straight(i, variable) for i in e.index)
            table = e.index[: self.view.tables.get(e.tensor.name, 0)]
            if any(affine(i).mentions(variable) for i in table):
                return False
            return plain(self.offset(e), variable)
        if is_index(e):
            return plain(affine(e), variable)
        return all(self.straight(c, variable) for c in children(e))

    def straightened(
        self, variable: Axis, origin: Expr, point: Callable[[Expr], Point], uses: Sequence[Expr]
    ) -> tuple[Axis, Point]:
        """The remaining innermost loop of the one over `variable`, and the point in terms of it. Parameters as in `row`."""
        row = self.row(variable, origin, point, uses)
        if row is None:
            return variable, point(variable)
        return _part(variable, origin, point, row)

    def row(
        self, variable: Axis, origin: Expr, point: Callable[[Expr], Point], uses: Sequence[Expr]
    ) -> int | None:
        """The largest number of positions over which accesses are always straight, if not all are.

        origin: the position of the first one, of which `point` gives the axes of `uses` by a distance from there.
        """
        whole = dict(point(variable))
        flat = [substitute(e, whole) for e in uses]
        if all(self.straight(e, variable) for e in flat):
            return None
        if interval(origin) is None:
            return None
        periods = [n for e in flat for n in _periods(e, variable)]
        # Shorter ones stay in a long loop: what few neighbours share is gathered.
        for least in (LONG, 0):
            row = math.gcd(*(n for n in periods if n >= least))
            if row < min(max(SHORTEST, least), variable.extent):
                continue
            x, there = _part(variable, origin, point, row)
            here = dict(there)
            parts = [substitute(e, here) for e in uses]
            if all(self._runs(e, x, least) for e in parts):
                return row
            # The addresses of gathers in any case are at least computed without quotients.
            if least and row < variable.extent and not any(any(_periods(e, x)) for e in parts):
                return row
        return None

    def _runs(self, e: Expr, x: Axis, least: int) -> bool:
        """Whether `e` is straight along x, apart from quotients and remainders of fewer than `least` steps."""
        if least and isinstance(e, Load):
            short = [*_periods(e, x)]
            return (bool(short) and max(short) < least) or self.straight(e, x)
        if least and not is_index(e):
            return all(self._runs(c, x, least) for c in children(e))
        return self.straight(e, x)


def _part(
    variable: Axis, origin: Expr, point: Callable[[Expr], Point], row: int
) -> tuple[Axis, Point]:
    """The loop over a part of `row` positions, and the point in terms of it."""
    outer, x = Axis(f"{variable.name}o", 1 << 24), Axis(variable.name, row)
    return x, point(Binary("sub", add(mul(outer, idx(row)), x), origin))


def _periods(e: Expr, variable: Axis) -> Iterator[int]:
    """The number of steps of `variable` after which quotients and remainders in `e` change."""
    match e:
        case Binary("floordiv" | "mod", x, Const(value)):
            step = affine(x).coefficient(variable)
            if step:
                yield int(value) // math.gcd(int(value), step)
        case _:
            pass
    for c in children(e):
        yield from _periods(c, variable)


def block_start(name: str, extent: int, size: int) -> Expr:
    """The beginning of a block, if `extent` positions are cut into blocks of `size` by a loop over a variable `name`: 0 for a single
    block."""
    return idx(0) if extent <= size else mul(Axis(name, -(-extent // size)), idx(size))


def plain(a: Affine, variable: Axis) -> bool:
    """Whether `variable` occurs in `a` as a linear term only."""
    return all(
        atom == variable or not Affine(((atom, 1),)).mentions(variable) for atom, _ in a.terms
    )


def stride(a: Affine, variable: Axis) -> int | None:
    """The coefficient of `variable`, None where it does not occur as a linear term only."""
    return a.coefficient(variable) if plain(a, variable) else None
