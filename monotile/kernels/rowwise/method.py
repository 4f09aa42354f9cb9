"""The methods of row-wise steps in a Plan."""

from typing import ClassVar

from monotile.plan.nodes import Method
from monotile.plan.places import Frozen


class HoldRows(Method, Frozen, frozen=True, tag="hold_rows"):
    """Rows that are read, reduced and written from registers: `match.Rowwise` describes its computes.

    The anchor is the first wide one, number `result` of the step's computes, after the values of which a row has one. A group of `lanes`
    neighbouring threads has a row; each thread has vectors of `vector` neighbours of it, `lanes` vectors apart. In a stage that waits late,
    tensors that no launch changes are prefetched before the wait.
    moments: (sum of squared differences from the mean, sum) pairs that are computed in one pass over the row.
    The match: rows: the number of leading axes over the rows. span: extents along a row. order: the computes in an order of evaluation.
    """

    light: ClassVar[bool] = True
    has_followers: ClassVar[bool] = False
    names: ClassVar[tuple[str, ...]] = ("order", "moments")

    result: int
    lanes: int
    vector: int
    rows: int
    span: tuple[int, ...]
    order: tuple[str, ...]
    moments: tuple[tuple[str, str], ...] = ()

    @property
    def anchor(self) -> int:
        return self.result

    @property
    def match(self) -> "tuple[int, tuple[int, ...], tuple[str, ...]]":
        """The match."""
        return self.rows, self.span, self.order

    def describe(self) -> str:
        once = ", sum and squares in one pass" if self.moments else ""
        return f"rows in registers, {self.lanes} lanes x{self.vector}{once}"
