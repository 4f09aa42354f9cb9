"""The methods of transposed copies in a Plan."""

from typing import ClassVar

from monotile.plan.nodes import Method
from monotile.plan.places import Frozen


class Transpose(Method, Frozen, frozen=True, tag="transpose"):
    """A copy in another order of axes. A task brings what it reads on chip as it lies in memory; then a thread has `vector` neighbours of the last
    axis with all that lies behind them, which are neighbours, and writes a vector for each position of the dim `behind`, which every task walks whole."""

    copies: ClassVar[bool] = True
    reads_shared: ClassVar[bool] = False

    vector: int
    behind: int

    def describe(self) -> str:
        return f"transpose x{self.vector}"


class Interleave(Method, Frozen, frozen=True, tag="interleave"):
    """Elements whose last axis is short, and is not where neighbours lie in what is read: a thread takes `vector` neighbours of the axis
    before it, where these do, with all of the last, and writes them as one run."""

    vector: int

    def describe(self) -> str:
        return f"interleave x{self.vector}"


class TransposeTiles(Method, Frozen, frozen=True, tag="transpose_tiles"):
    """A copy whose last axis and another one, the last of what is read, change places, by way of on-chip memory: a task is a tile of both, which
    threads read and write in vectors of `vector` neighbours: of `extent` rows and columns at most. It is dims `rows`, of the last axis, and `columns`, of the other; the rest are walked one by one."""

    reads_shared: ClassVar[bool] = False
    sends: ClassVar[bool] = False
    has_followers: ClassVar[bool] = False

    vector: int
    rows: int
    columns: int
    extent: int

    def describe(self) -> str:
        return f"transpose tiles of {self.extent} x{self.vector}"
