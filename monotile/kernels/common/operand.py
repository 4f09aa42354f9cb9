"""How a product, or attention, reads one of its operands."""

from typing import Literal

from monotile.plan.nodes import Frozen


class Operand(Frozen, frozen=True):
    """major:  the direction in which neighbours in memory lie: along "k", along "mn" (m of the left side, n of
            the right), or "none".
    vector: elements one copy moves.
    copy:   "direct" (read in place), "async" (asynchronous copies of vector * itemsize bytes into shared
            memory), "element" (evaluated one by one into shared memory).
    """

    major: Literal["k", "mn", "none"]
    vector: int
    copy: Literal["direct", "async", "element"]

    def describe(self) -> str:
        """In a few words."""
        return (
            f"{self.copy} x{self.vector} along {self.major}" if self.major != "none" else self.copy
        )
