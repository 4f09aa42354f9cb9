"""The methods of products of a weight matrix with a few vectors in a Plan."""

from typing import ClassVar, Literal

from monotile.analysis.streaming import VECTOR
from monotile.plan.nodes import Method
from monotile.plan.places import Frozen

PARTS = (1, 2, 4, 8)  # warps that may share a row


class Gemv(Method, Frozen, frozen=True, tag="gemv"):
    """Rows of a weight matrix times one vector or a few, as dot products.

    The rows come through the worker's ring (`Launch.ring`). A slot is for a team of `team` warps; `turns` teams take slots in turn. `parts`
    warps share a row: each has a part of its columns, for which it holds the vectors' elements in registers, and computes the sums of a
    chunk, `rows` neighbouring rows. second: whether the matrix is the second factor. chunk_bytes: of one warp's part of `rows` rows.
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
        """Rows of a slot; 1 if it has a part of one."""
        return max(1, self.team // self.parts) * self.rows

    @property
    def row_slots(self) -> int:
        """Slots per row."""
        return max(1, self.parts // self.team)

    def describe(self) -> str:
        shared = f", {self.parts} warps a row" if self.parts > 1 else ""
        return f"gemv, {self.rows} rows of {self.chunk_bytes} bytes at a time{shared}"


class GemvColumns(Method, Frozen, frozen=True, tag="gemv_columns"):
    """Columns of a weight matrix times one vector or a few, where the columns of a row are contiguous in memory.

    A task has `row_bytes` of each row. A slot of the worker's ring has this part of `rows` neighbouring rows. Each of `threads` threads
    takes 16 bytes of every n-th row, with the vectors on chip; if several threads have the same columns, their sums are combined there.
    second: whether the matrix is the second factor.
    """

    second: bool
    row_bytes: int
    rows: int
    threads: int

    parts: ClassVar[int] = 1  # sums per column

    @property
    def packs(self) -> int:
        """Vectors per row."""
        return self.row_bytes // VECTOR

    @property
    def lanes(self) -> int:
        """Rows that the threads process at once."""
        return self.threads // self.packs

    @property
    def slot_bytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def slots_at_once(self) -> int:
        return 1

    def describe(self) -> str:
        return f"gemv across, {self.row_bytes} bytes of {self.rows} rows at a time, {self.lanes} by threads"


class SlotOperand(Frozen, frozen=True):
    """An operand of decoding other than the codes (`Encoded.sides`) that comes in the codes' slots: `nbytes` for each piece of a row,
    copied `vector` bytes at a time. aligned: whether they begin at a whole vector; else whole vectors are copied, from that where they
    begin, and lie as they did in them."""

    nbytes: int
    vector: int
    aligned: bool = True

    @property
    def vectors(self) -> int:
        """Vectors of a piece, at most."""
        return (
            self.nbytes // self.vector if self.aligned else -(-(self.nbytes - 1) // self.vector) + 1
        )

    @property
    def pitch(self) -> int:
        """Bytes from row to row: an odd number of vectors, so that eight rows have no bank conflicts."""
        return self.vector * (self.vectors + 1 - self.vectors % 2)


class GemvMma(Method, Frozen, frozen=True, tag="gemv_mma"):
    """Rows of a weight matrix that is stored as codes, times one vector or a few, on tensor cores (mma.m16n8k16).

    The rows come through the worker's ring, a slot of them at a time in `pieces` pieces of `piece` bytes each. All warps process each slot:
    `parts` warps share tiles of 8 rows, of which each warp has `tiles`. In blocks, which the `parts` take in turn, each of 4 lanes decodes
    `run` bytes of a row.
    vectors: "chip": all of them are on chip for the task; "memory": a warp loads those of a block from memory, one block ahead, again for
    each slot's rows. second: whether the matrix is the second factor. warps: of the worker.
    sides: the operands of decoding that come in the slots, after the codes; None for one that threads copy on chip before the first slot.
    The supplier has prefetched it into the last-level cache by then.
    decode: "pairs": codes are unpacked in pairs, and all arithmetic is done in pairs; "codes": only the unpacking; "elements": one by one.
    """

    second: bool
    warps: int
    parts: int
    tiles: int
    pieces: int
    piece: int
    run: int
    sides: tuple[SlotOperand | None, ...]
    vectors: Literal["chip", "memory"]
    decode: Literal["elements", "codes", "pairs"]

    @property
    def slot_rows(self) -> int:
        """Rows of a slot, one for each lane of the supplier."""
        return 8 * self.tiles * (self.warps // self.parts)

    @property
    def pitch(self) -> int:
        """Bytes from row to row of a slot. Whole rows lie as memory has them, so that one copy brings several; pieces such that lanes of
        neighbouring rows have no bank conflicts."""
        if self.pieces == 1:
            return self.piece
        lines = 4 * self.run
        return self.piece + (lines - self.piece) % 128

    @property
    def blocks(self) -> int:
        """Blocks of a piece. The last one of a row may have fewer runs than four."""
        return -(-self.piece // (4 * self.run))

    @property
    def slot_bytes(self) -> int:
        return self.side_at(len(self.sides))

    def side_at(self, number: int) -> int:
        """The offset of a side in a slot, in bytes."""
        return self.slot_rows * (self.pitch + sum(s.pitch for s in self.sides[:number] if s))

    @property
    def row_slots(self) -> int:
        """Slots per row."""
        return self.pieces

    @property
    def slots_at_once(self) -> int:
        return 1

    def describe(self) -> str:
        shared = f", {self.parts} warps a row" if self.parts > 1 else ""
        return f"gemv mma, {self.slot_rows} rows of {self.piece} bytes at a time, {self.tiles} tiles of 8{shared}, {self.run} bytes a lane, decode {self.decode}, vectors in {self.vectors}"


Streamed = Gemv | GemvMma | GemvColumns
