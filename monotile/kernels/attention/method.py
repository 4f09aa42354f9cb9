"""The methods of softmax-weighted sums in a Plan."""

from typing import ClassVar, Literal

from monotile.kernels.common.epilogue import Epilogue
from monotile.kernels.common.operand import Operand
from monotile.plan.nodes import Method
from monotile.plan.places import Frozen

DIRECT_RUN = 32  # operands that are read directly have multiples of so many features and columns
DIRECT_DEPTHS = (1, 2)  # chunks of them in registers


class Attend(Method, Frozen, frozen=True, tag="attend"):
    """A softmax-weighted sum, streamed along the keys (FlashAttention): `match.Attention` describes its computes.

    The anchor is the result, number `result` of the step's computes; those before it are never stored. m, n: positions in the step's dims:
    rows of queries, columns of values; the other dims are batches, walked one by one. The rows are those of a head, or also of the heads
    that share keys, heads first; then a tile of m is within such heads. A task has block_m of them at most. Keys are cut in chunks of
    `chunk`, which slices of the warps divide among themselves, each with a separate ring of `depth` chunks of keys and values; the results
    of the slices are combined at the end. A slice is one warp, for wgmma block_m / 16 of them, each with 16 rows.
    What was matched: along: the position of the keys in the axes of the scores. queries_second, weights_second: whether the queries are the
    second factor of the scores' products, and the softmax of the result's. least: a lower bound of the softmax's sum. scale: the factor
    from products of queries and keys to scores, which the exponentials include; None where scores are anything else.
    Operands that are read directly have no ring: a warp's registers hold `depth` chunks, and block_m is the number of rows.
    passes: 3 where operands are float32, tensor-core products for one (`matmul.Matmul.passes`); 1 for those that may be rounded to TF32.
    part: for a part of the keys: there is no softmax, the values are weighted by its exponentials, and their maximum score and their sum
    are results too, which are stored if they have readers.
    """

    reads_shared: ClassVar[bool] = False

    result: int
    m: int
    n: int
    block_m: int
    chunk: int
    depth: int
    query: Operand
    key: Operand
    value: Operand
    along: int
    queries_second: bool
    weights_second: bool
    least: float = 0.0
    scale: float | None = None
    instruction: Literal["wgmma", "mma"] = "mma"
    epilogue: Epilogue = Epilogue()
    part: bool = False
    passes: int = 1

    @property
    def anchor(self) -> int:
        return self.result

    @property
    def direct(self) -> bool:
        """Whether warps read queries, keys and values from memory into their registers."""
        return self.key.copy == "direct"

    @property
    def padded(self) -> int:
        """Rows that tensor cores compute for a block."""
        return -(-self.block_m // 16) * 16

    def slices(self, warps: int) -> int:
        """The number of slices of a worker's `warps`."""
        return warps * 16 // self.block_m if self.instruction == "wgmma" else warps

    def describe(self) -> str:
        by = "attend wgmma" if self.instruction == "wgmma" else "attend"
        by += " part" if self.part else ""
        by += f" in {self.passes} passes" if self.passes > 1 else ""
        held = "registers for" if self.direct else "rings of"
        parts = [f"{by}, {self.block_m} rows, chunks of {self.chunk} keys, {held} {self.depth}"]
        for side, operand in (("query", self.query), ("key", self.key), ("value", self.value)):
            parts.append(f"{side} {operand.describe()}")
        if self.epilogue != Epilogue():
            parts.append(self.epilogue.describe())
        return ", ".join(parts)
