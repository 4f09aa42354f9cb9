"""How writes at computed positions are done."""

import msgspec

from monotile.plan.nodes import Method, Prefetch
from monotile.plan.places import Frozen


class Serial(Method, Frozen, frozen=True, tag="serial"):
    """A Scatter whose writes may collide. Threads share the dims at positions `parallel`, along which they never
    do; each walks the other dims in row-major order.

    prefetch: at "loop" what so many elements of the last of these read, before any of them is written.
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
