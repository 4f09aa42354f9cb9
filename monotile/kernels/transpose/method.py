"""The methods of transposed copies in a Plan."""

from typing import ClassVar

from monotile.plan.nodes import Method
from monotile.plan.places import Frozen


class Transpose(Method, Frozen, frozen=True, tag="transpose"):
    """A copy in another order of axes.

    A task copies its operand on chip in memory order. Then a thread has `vector` neighbours of the last axis with all dimensions after it
    in the operand, which are contiguous there, and writes a vector for each position of the dim `behind`, which is whole in every task.
    """

    copies: ClassVar[bool] = True
    reads_shared: ClassVar[bool] = False

    vector: int
    behind: int

    def describe(self) -> str:
        return f"transpose x{self.vector}"


class Interleave(Method, Frozen, frozen=True, tag="interleave"):
    """A statement with a short last axis that is not the contiguous one of its operands: a thread reads `vector` neighbours along the axis
    before it, for each value of the last, and writes them as one contiguous run."""

    vector: int

    def describe(self) -> str:
        return f"interleave x{self.vector}"


class TransposeTiles(Method, Frozen, frozen=True, tag="transpose_tiles"):
    """A copy that exchanges its last axis with the operand's last axis, through on-chip memory.

    A task is a tile of both, of at most `extent` rows and columns, which threads read and write in vectors of `vector` neighbours. rows:
    the dim of the last axis. columns: the dim of the other; the remaining dims are looped over.
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
