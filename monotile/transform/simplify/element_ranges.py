"""Ranges of integer tensors' elements, from the statements that compute them: sorting gives positions that are below their number and
never negative."""

from math import prod

from monotile.ir.expr import Expr
from monotile.ir.intervals import NOTHING_KNOWN, Interval, Ranges, type_range
from monotile.ir.program import Compute, Scatter, Statement


class ElementRanges:
    """known: ranges by tensor name, from the statements given to `learn`."""

    def __init__(self) -> None:
        self.known: dict[str, Interval] = {}

    def learn(self, s: Statement) -> None:
        """Adds the range of the result of `s`, all of which is computed."""
        match s:
            case Compute(live=()) if 0 not in s.out.shape:
                found = self._combined(s)
            case Scatter(combiner=None | "max" | "min"):
                base, value = self.known.get(s.base.name), self._of(s.value)
                found = None if base is None or value is None else base.join(value)
            case _:
                return
        whole = type_range(s.out.dtype)
        if found is None or whole is None or found == whole or not found.inside(*whole):
            return  # nothing, or it may wrap
        self.known[s.out.name] = found

    def _of(self, e: Expr) -> Interval | None:
        return Ranges(NOTHING_KNOWN, self.known).of(e)

    def _combined(self, c: Compute) -> Interval | None:
        terms = prod(a.extent for a in c.reduce)
        if not c.out.dtype.is_int or (c.combiner is not None and not terms):
            return None
        if c.combiner in ("argmax", "argmin"):
            return Interval(0, terms - 1)
        term = self._of(c.body)
        match c.combiner:
            case None | "max" | "min":
                return term
            case "sum" if term is not None:
                return Interval(term.lo * terms, term.hi * terms)
            case _:
                return None
