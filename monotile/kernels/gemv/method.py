"""How a matrix of weights is multiplied with a few vectors."""

from monotile.plan.nodes import Method
from monotile.plan.places import Frozen


class Gemv(Method, Frozen, frozen=True, tag="gemv"):
    """Rows of a matrix of weights times one vector or a few.

    The rows come through the worker's ring (`Launch.ring`). A slot is for a team of `team` warps; `turns` teams take slots
    in turns. `parts` warps share a row: each has a part of its columns, of which it holds the vectors' elements in
    registers, and finds the sums of a chunk, `rows` neighbours. second: whether the matrix is the second factor. chunk_bytes: of one warp's
    part of `rows` rows.
    """

    parts: int
    rows: int
    second: bool
    chunk_bytes: int
    team: int
    turns: int

    @property
    def slot_bytes(self) -> int:
        return self.team * self.chunk_bytes

    @property
    def slots_at_once(self) -> int:
        return self.turns + 1

    @property
    def slot_rows(self) -> int:
        """Rows of a slot; 1 where it has a part of one."""
        return max(1, self.team // self.parts) * self.rows

    @property
    def row_slots(self) -> int:
        """Slots that a row takes."""
        return max(1, self.parts // self.team)

    def describe(self) -> str:
        shared = f", {self.parts} warps a row" if self.parts > 1 else ""
        return f"gemv, {self.rows} rows of {self.chunk_bytes} bytes at a time{shared}"
