"""How the elements of a map are distributed over the threads of a block."""

from collections.abc import Sequence
from dataclasses import dataclass

from monotile.codegen.site import Range, unflatten
from monotile.ir.expr import Axis, Expr, add, binary, idx, mul, sub


@dataclass(frozen=True, slots=True)
class ThreadMap:
    """Which threads compute which vectors of a map: thread `first` takes the first of `groups`, each of `width` elements, at each of
    `windows` neighbours along the range before the last. Where these do not divide it, the last ones of a row begin earlier, so that
    all are complete."""

    width: int
    groups: int
    first: int
    threads: int
    windows: int = 1

    @property
    def thread(self) -> str:
        """The thread's number, which is that of its first vector."""
        if self.first:
            return f"(threadIdx.x + {self.threads - self.first}) % {self.threads}"
        return "threadIdx.x"

    @property
    def head(self) -> str:
        """The condition, or the loop, under which a thread has the vector `e`."""
        if self.groups <= self.threads:
            return f"if (const idx e = {self.thread}; e < {self.groups})"
        return f"for (idx e = {self.thread}; e < {self.groups}; e += {self.threads})"

    def element(
        self, ranges: Sequence[Range], lane: Expr, window: Expr | None = None
    ) -> dict[str, Expr]:
        """The ranges' variables at `lane` of the vector `e`, in its first window or in `window`."""
        found = self._numbers(ranges, lane)
        if self.windows == 1:
            return found
        slid = ranges[-2].variable
        first = self._first(found[slid.name], slid)
        return found | {slid.name: first if window is None else add(first, window)}

    def overlap(self, ranges: Sequence[Range]) -> Expr | None:
        """How many of its windows the vector before has as well; None where they divide the range."""
        slid = ranges[-2].variable if self.windows > 1 else None
        if slid is None or slid.extent % self.windows == 0:
            return None
        number = self._numbers(ranges, idx(0))[slid.name]
        return sub(mul(number, idx(self.windows)), self._first(number, slid))

    def _numbers(self, ranges: Sequence[Range], lane: Expr) -> dict[str, Expr]:
        """The ranges' variables at `lane` of the vector `e`; for the one along which windows are, the number of their group."""
        vector = Axis("e", self.groups) if self.groups > 1 else idx(0)
        variables = [r.variable for r in ranges]
        if self.windows > 1:
            slid = variables[-2]
            variables[-2] = Axis(slid.name, -(-slid.extent // self.windows))
        return unflatten(add(mul(vector, idx(self.width)), lane), variables)

    def _first(self, number: Expr, slid: Axis) -> Expr:
        first = mul(number, idx(self.windows))
        if slid.extent % self.windows == 0:
            return first
        return binary("min", first, idx(slid.extent - self.windows))
