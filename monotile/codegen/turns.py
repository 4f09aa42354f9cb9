"""How the threads of a block take turns at the elements of a map."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from monotile.codegen.base import Range, unflatten
from monotile.ir.expr import Axis, Expr, add, idx, mul


@dataclass(frozen=True, slots=True)
class Turn:
    """Which threads take which vectors of a map: thread `first` takes the first of `groups`, each of `width` elements."""

    width: int
    groups: int
    first: int
    threads: int

    @property
    def head(self) -> str:
        """The condition, or the loop, under which a thread has the vector `e`."""
        thread = "threadIdx.x"
        if self.first:
            thread = f"(threadIdx.x + {self.threads - self.first}) % {self.threads}"
        if self.groups <= self.threads:
            return f"if (const idx e = {thread}; e < {self.groups})"
        return f"for (idx e = {thread}; e < {self.groups}; e += {self.threads})"

    def element(self, ranges: Sequence[Range], lane: Expr) -> dict[str, Expr]:
        """The ranges' variables at `lane` of the vector `e`."""
        vector = Axis("e", self.groups) if self.groups > 1 else idx(0)
        return unflatten(add(mul(vector, idx(self.width)), lane), [r.variable for r in ranges])


@dataclass(frozen=True, slots=True)
class Early:
    """What a map's threads asked for before, and the texts under which they know it."""

    turn: Turn
    names: Mapping[Hashable, str]
