"""How the elements of a map are distributed over the threads of a block."""

from collections.abc import Sequence
from dataclasses import dataclass

from monotile.codegen.site import Range, unflatten
from monotile.ir.expr import Axis, Expr, add, idx, mul


@dataclass(frozen=True, slots=True)
class ThreadMap:
    """Which threads take which vectors of a map: thread `first` takes the first of `groups`, each of `width` elements, at each of
    `windows` neighbours along the range before the last."""

    width: int
    groups: int
    first: int
    threads: int
    windows: int = 1

    @property
    def thread(self) -> str:
        """The number of a thread, of its first vector."""
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
        vector = Axis("e", self.groups) if self.groups > 1 else idx(0)
        position, variables = add(mul(vector, idx(self.width)), lane), [r.variable for r in ranges]
        if self.windows == 1:
            return unflatten(position, variables)
        *outer, slid, last = variables
        found = unflatten(position, [*outer, Axis(slid.name, slid.extent // self.windows), last])
        first = mul(found[slid.name], idx(self.windows))
        return found | {slid.name: first if window is None else add(first, window)}
