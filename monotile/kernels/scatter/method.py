"""The methods of Scatters in a Plan."""

from typing import ClassVar

import msgspec

from monotile.plan.nodes import Method, Prefetch
from monotile.plan.places import Frozen


class Serial(Method, Frozen, frozen=True, tag="serial"):
    """A Scatter whose writes may collide. Threads share the dims at positions `parallel`, along which they never do; each loops over the
    other dims in row-major order.

    prefetch: at "loop" the operands of so many elements along the last of these dims, before any of them is written.
    """

    parallel: tuple[int, ...] = ()
    prefetch: tuple[Prefetch, ...] = ()

    @property
    def prefetches(self) -> tuple[Prefetch, ...]:
        return self.prefetch

    def with_prefetch(self, more: tuple[Prefetch, ...]) -> "Serial":
        return msgspec.structs.replace(self, prefetch=(*self.prefetch, *more))

    def describe(self) -> str:
        order = f"serial, but for dims {list(self.parallel)}" if self.parallel else "serial"
        return ", ".join((order, *(p.describe() for p in self.prefetch)))


class Listed(Method, Frozen, frozen=True, tag="listed"):
    """A Scatter whose writes may collide, with the terms of each position in their order.

    A task has the `rows` positions from c * `rows` on, of the scattered dimensions flattened, where c is its coordinate along the tile axis
    `axis`. Its threads read all indices together, `loads` each at once. Those within the task's rows become on-chip lists, one per row, of
    at most `capacity` terms for each warp that reads. Then `lanes` threads share a row: each has `each` of its features, and adds `terms`
    terms that are loaded at once.
    """

    axis: int
    rows: int
    capacity: int
    loads: int
    lanes: int
    each: int
    terms: int

    @property
    def own_axes(self) -> tuple[int, ...]:
        return (self.axis,)

    def nbytes(self, threads: int, warp: int) -> int:
        """On-chip bytes, by the layout of `device/scatter.cuh`: a warp's lists and counts, and its terms in the order of the rows."""
        warps = threads // warp
        size = warps * (8 + self.capacity * (4 + 4 + 2) + self.rows * 2)
        return -(-size // 16) * 16

    def describe(self) -> str:
        way = f"{self.lanes} lanes x{self.each} a row, {self.terms} terms at once"
        return f"lists of {self.rows} positions, {self.loads} indices at once, {way}"


class ListRows(Method, Frozen, frozen=True, tag="list_rows"):
    """The lists of the terms of each row (`analysis.row_lists`), in memory: `first`, `rank`, which is not stored, and `order`.

    A task has the `rows` rows from c * `rows` on, where c is its coordinate along the tile axis `axis`; its threads read the rows of all
    terms, `loads` each at once, as those of `Listed` do.
    """

    sends: ClassVar[bool] = False

    axis: int
    rows: int
    capacity: int
    loads: int

    @property
    def anchor(self) -> int:
        return 2

    @property
    def own_axes(self) -> tuple[int, ...]:
        return (self.axis,)

    def nbytes(self, threads: int, warp: int) -> int:
        """On-chip bytes, by the layout of `device/row_lists.cuh`: `Listed`'s, and a number for each row and each warp."""
        lists = Listed(self.axis, self.rows, self.capacity, self.loads, warp, 1, 1)
        size = lists.nbytes(threads, warp) + 4 * (self.rows + threads // warp)
        return -(-size // 16) * 16

    def describe(self) -> str:
        return f"terms of {self.rows} rows in lists, {self.loads} indices at once"
