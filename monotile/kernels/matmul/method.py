"""The methods of tiled matrix products in a Plan."""

from typing import ClassVar, Literal

import msgspec

from monotile.kernels.common.epilogue import Epilogue
from monotile.kernels.common.operand import Operand
from monotile.plan.nodes import Method, Prefetch
from monotile.plan.places import Frozen


class Matmul(Method, Frozen, frozen=True, tag="matmul"):
    """A sum of products as a tiled matrix product; `m` and `n` are positions in the step's dims.

    Dims other than m and n are batches, walked one by one. `k` holds the reduce axes in the order in which they are flattened. A task's
    region is walked in blocks of block_m x block_n; inside, every warp owns accumulators for block_m / warps_m x block_n / warps_n, the K
    dimension is cut in chunks of block_k, and chunk c belongs to the warps of slice c % slices, each slice with a separate ring of `depth`
    chunks in shared memory; the slices are added up at the end.
    passes: tensor-core products for one: 3 where operands are float32, which is split into two parts of TF32; 1 takes the first parts
    alone.
    swapped: the left operand is the second factor of the product that the anchor sums, not the first.
    A sparse right operand takes the place of the left one in the instruction: warpgroups are 64 columns each, `warps_n` in all, and sum the
    transposed block.
    runs: a block's columns are so many adjacent runs, each with a separate part of the left side's values for the axes before the last of
    k: the channels of a group. Their common operands are copied as one line.
    tasks_at_once: the warps are so many teams, with a ring each, which take a block each. It is the only step of its stage then, and a
    worker has several of the stage's tasks: the teams take these in turn (ping-pong), and one's products run while another computes its
    epilogue.
    prefetch: at "handoff" the first chunks of an operand that no stage computes; at "task" chunks of the worker's next task, after this
    one's products and before its sums are stored: the sums leave so many stages of the ring free, and it is the only step of its stage
    then. At "use" an operand whose lines are evicted first from the last-level cache.
    On the CPU a block is one register tile, and slices, warps and depth are 1. sums: rows and columns, in whole blocks, of the sums that
    stay in the cache while chunks of k are processed; None for those of one block, as in an unfinished Plan. An operand is read in place
    if it is "direct", else it is packed; a packed right one of an outer product is transposed, vector by vector, if it is contiguous
    along "k". Of "words" each sum takes a word of neighbours along k at a time, two of 16 bits or four of 8 (`words.py`).
    """

    reads_shared: ClassVar[bool] = False

    m: int
    n: int
    k: tuple[int, ...]
    block_m: int
    block_n: int
    block_k: int
    instruction: Literal["wgmma", "mma", "fma", "dot", "outer", "words"]
    left: Operand
    right: Operand
    warps_m: int = 1
    warps_n: int = 1
    slices: int = 1
    passes: int = 1
    depth: int = 1
    runs: int = 1
    tasks_at_once: int = 1
    swapped: bool = False
    epilogue: Epilogue = Epilogue()
    sums: tuple[int, int] | None = None
    prefetch: tuple[Prefetch, ...] = ()

    @property
    def products(self) -> int:
        """The number of products with the same left operand whose sums a block has side by side."""
        return 1

    @property
    def columns(self) -> int:
        """A block's columns of each of these products: those of the results."""
        return self.block_n // self.products

    @property
    def prefetches(self) -> tuple[Prefetch, ...]:
        return self.prefetch

    def with_prefetch(self, more: tuple[Prefetch, ...]) -> "Matmul":
        return msgspec.structs.replace(self, prefetch=(*self.prefetch, *more))

    @property
    def teams(self) -> int:
        return self.tasks_at_once

    @property
    def following(self) -> int:
        """Chunks of the next task that are prefetched during one."""
        return self.ahead("task")

    @property
    def sparse(self) -> bool:
        """Whether the right operand is 2:4 sparse along k."""
        return self.right.copy == "sparse"

    @property
    def right_share(self) -> float:
        """The fraction of the right operand that is stored and copied: half of the values, and two bits for each."""
        return 9 / 16 if self.right.copy == "sparse" else 1.0

    @property
    def in_parts(self) -> bool:
        """Whether warpgroups multiply float32 in several passes: left operands are split in registers, right ones on chip."""
        return self.instruction == "wgmma" and self.passes > 1

    def evicts_first(self, side: str) -> bool:
        """Whether the copied lines of an operand are evicted first from the last-level cache."""
        return any(p.what == side and p.cache == "evict_first" for p in self.prefetch)

    def describe(self) -> str:
        parts = [f"matmul {self.instruction} {self.block_m}x{self.block_n}x{self.block_k}"]
        if (self.warps_m, self.warps_n, self.slices, self.depth) != (1, 1, 1, 1):
            warps = f"{self.warps_m}x{self.warps_n} warps x {self.slices} slices"
            warps += f" x {self.teams} teams" if self.teams > 1 else ""
            parts.append(f"{warps}, rings of {self.depth}")
        if self.passes > 1:
            parts.append(f"{self.passes} passes")
        if self.runs > 1:
            parts.append(f"{self.runs} runs of columns")
        if self.products > 1:
            parts.append(f"{self.products} products side by side")
        if self.sums is not None:
            parts.append(f"{self.sums[0]}x{self.sums[1]} sums at a time")
        if self.epilogue != Epilogue():
            parts.append(self.epilogue.describe())
        sides = (f"left {self.left.describe()}", f"right {self.right.describe()}")
        return ", ".join((*parts, *sides, *(p.describe() for p in self.prefetch)))


class MatmulGate(Matmul, frozen=True, tag="matmul_gate"):
    """A product several of whose sums give one result each, element by element: the two of a gated linear unit (`gate.Gate`).

    The anchor is the result, after the product, whose sums are never stored. m and n are dims of the result, and a task has each of the
    `parts` for its rows and columns: a block's columns are those of the parts side by side, block_n / parts of each, and so are the
    lines of its right operand, which begins anew for each part.
    """

    parts: int = 2

    @property
    def anchor(self) -> int:
        return 1

    @property
    def products(self) -> int:
        return self.parts


class MatmulRows(Matmul, frozen=True, tag="matmul_rows"):
    """A product whose tasks have whole rows of sums, with a row-wise epilogue: a softmax, a normalisation. The sums stay on chip.

    A task is one block. Groups of `lanes` neighbouring threads take rows of its sums in turn, as rows in registers are taken
    (`common/cuda_rows.py`). The anchor is number `result` of the step's computes, after the one-per-row values. vector, rows, span,
    order, moments: as in `HoldRows`.
    """

    has_followers: ClassVar[bool] = False
    names: ClassVar[tuple[str, ...]] = ("order", "moments")

    result: int = 0
    lanes: int = 1
    vector: int = 1
    rows: int = 0
    span: tuple[int, ...] = ()
    order: tuple[str, ...] = ()
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
        return f"{super().describe()}, then rows of {self.lanes} lanes x{self.vector}{once}"
