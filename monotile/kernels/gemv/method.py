"""How a matrix of weights is multiplied with a few vectors."""

from monotile.plan.nodes import Method
from monotile.plan.places import Frozen


class Gemv(Method, Frozen, frozen=True, tag="gemv"):
    """Rows of a matrix of weights times one vector or a few.

    The rows come through the worker's ring (`Launch.ring`), `rows` neighbours at a time, into slots of one warp each. `parts` warps share a
    row: each has a part of its columns, of which it holds the vectors' elements in registers, and finds `rows` sums of a chunk.
    second: whether the matrix is the second factor. chunk_bytes: of one warp's part of `rows` rows.
    """

    parts: int
    rows: int
    second: bool
    chunk_bytes: int

    @property
    def slot_bytes(self) -> int:
        return self.chunk_bytes

    def describe(self) -> str:
        shared = f", {self.parts} warps a row" if self.parts > 1 else ""
        return f"gemv, {self.rows} rows of {self.chunk_bytes} bytes at a time{shared}"
