"""The methods of transposed copies in a Plan."""

from typing import ClassVar

from monotile.plan.nodes import Method
from monotile.plan.places import Frozen


class Transpose(Method, Frozen, frozen=True, tag="transpose"):
    """A copy in another order of axes. A task copies its operand on chip in memory order; then a thread has `vector` neighbours of the
    last axis with all dimensions after it in the operand, which are contiguous there, and writes a vector for each position of the
    dim `behind`, which every task walks whole."""

    copies: ClassVar[bool] = True
    reads_shared: ClassVar[bool] = False

    vector: int
    behind: int

    def describe(self) -> str:
        return f"transpose x{self.vector}"


class Interleave(Method, Frozen, frozen=True, tag="interleave"):
    """Elements whose last axis is short, and not the contiguous one of the operand: a thread takes `vector` neighbours of the axis
    before it, which is, with all of the last, and writes them as one run."""

    vector: int

    def describe(self) -> str:
        return f"interleave x{self.vector}"


class TransposeTiles(Method, Frozen, frozen=True, tag="transpose_tiles"):
    """A copy that transposes its last axis and another one, the operand's last, through on-chip memory: a task is a tile of both, which
    threads read and write in vectors of `vector` neighbours: of `extent` rows and columns at most. It is dims `rows`, of the last
    axis, and `columns`, of the other; the rest are walked one by one.
    """

    reads_shared: ClassVar[bool] = False
    sends: ClassVar[bool] = False
    has_followers: ClassVar[bool] = False

    vector: int
    rows: int
    columns: int
    extent: int

    def describe(self) -> str:
        return f"transpose tiles of {self.extent} x{self.vector}"
