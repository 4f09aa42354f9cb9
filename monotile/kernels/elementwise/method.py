"""The methods of maps in a Plan."""

from typing import ClassVar

import msgspec

from monotile.plan.nodes import Method, Prefetch
from monotile.plan.places import Frozen


class Map(Method, Frozen, frozen=True, tag="map"):
    """Independent elements; a thread has `vector` neighbours along the last axis at once.

    prefetch: at "stage" its operands in memory, if each thread has one vector; at "loop" the operands of so many of a thread's vectors,
    before any of them is used.
    """

    light: ClassVar[bool] = True
    has_lead: ClassVar[bool] = True

    vector: int = 1
    prefetch: tuple[Prefetch, ...] = ()

    @property
    def prefetches(self) -> tuple[Prefetch, ...]:
        return self.prefetch

    def with_prefetch(self, more: tuple[Prefetch, ...]) -> "Map":
        return msgspec.structs.replace(self, prefetch=(*self.prefetch, *more))

    def thread_vectors(self, elements: int) -> int:
        return elements // self.vector

    def describe(self) -> str:
        return ", ".join((f"map x{self.vector}", *(p.describe() for p in self.prefetch)))
