"""Where memory runs straight along a loop of the CPU: what is asked when methods are settled, and when loops are written.

A Load is straight along a variable if its address is a sum in which the variable stands alone. Quotients and remainders of a
flattened position are not; where they change only every so many positions, a loop is cut there, and its parts are straight.
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
    """The lines of memory that a stage's tasks read and write. view: of the stage."""

    view: View

    def offset(self, e: Load) -> Affine:
        """Of a Load without data-dependent indices; of a tensor in a register, its own."""
        if not stored(self.view.places[e.tensor.name]):
            return Affine(())
        return self.view.offset(e.tensor, e.index, self.view.place(e.tensor))

    def straight(self, e: Expr, variable: Axis) -> bool:
        """Whether every index in `e` is a sum in which `variable` stands alone."""
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
        """The innermost loop that is left of the one over `variable`, and the point in terms of it. `row` takes the same."""
        row = self.row(variable, origin, point, uses)
        if row is None:
            return variable, point(variable)
        return _part(variable, origin, point, row)

    def row(
        self, variable: Axis, origin: Expr, point: Callable[[Expr], Point], uses: Sequence[Expr]
    ) -> int | None:
        """How many positions run straight, where not all do but that many always.

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
            # What is gathered in any case is at least found without quotients.
            if least and row < variable.extent and not any(any(_periods(e, x)) for e in parts):
                return row
        return None

    def _runs(self, e: Expr, x: Axis, least: int) -> bool:
        """Whether `e` is straight along x, but for quotients and remainders of fewer than `least` steps."""
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
    """After how many steps of `variable` the quotients and remainders in `e` change."""
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
    """Where a block begins, if `extent` positions are cut into blocks of `size` by a loop over a variable `name`: 0 of a single block."""
    return idx(0) if extent <= size else mul(Axis(name, -(-extent // size)), idx(size))


def plain(a: Affine, variable: Axis) -> bool:
    """Whether `variable` stands alone in `a`."""
    return all(
        atom == variable or not Affine(((atom, 1),)).mentions(variable) for atom, _ in a.terms
    )


def stride(a: Affine, variable: Axis) -> int | None:
    """The coefficient of `variable`, None where it does not stand alone."""
    return a.coefficient(variable) if plain(a, variable) else None
