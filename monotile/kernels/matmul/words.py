"""Word-panel products: each instruction adds 32 bits along k to a sum, two bfloat16 or four 8-bit integers, on CPUs with AMX tiles (Intel's
Architecture Instruction Set Extensions reference, chapter 3). The panels have the VNNI layout."""

from collections.abc import Iterator

from monotile.analysis.words import COLUMNS, STEP_BYTES, by_words
from monotile.ir.dtype import DType
from monotile.kernels.common.cost import round_up
from monotile.kernels.common.operand import Operand
from monotile.kernels.common.product import Product
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.matmul.problem import Size
from monotile.kernels.matmul.settle import held_sums
from monotile.targets.target import Target

SUM_BYTES = 4
CHUNK_BYTES = 1024  # of a line of a chunk: a panel of it stays in the first-level cache


def word_blocks(p: Product, size: Size, target: Target) -> Iterator[Matmul]:
    """A block of as many lines as the tiles have, if the target has such instructions."""
    if not by_words(p.dtype, target.instructions):
        return
    packed, depth = Operand("none", 1, "element"), CHUNK_BYTES // p.dtype.itemsize
    left = p.left if p.left.major == "k" else packed
    if near := _within(p.near, depth, STEP_BYTES // p.dtype.itemsize):
        left, depth = Operand("k", 1, "direct"), near
    yield Matmul(
        m=0, n=0, k=p.k, block_m=16 if size.m <= 16 else 32, block_n=COLUMNS, block_k=depth, instruction="words",
        left=left, right=p.right if p.right.copy != "direct" else Operand(p.right.major, 1, "element"),
    )  # fmt: skip


def _within(near: int, most: int, step: int) -> int:
    """The largest chunk of whole steps, of at most `most` values of k, that divides the number of contiguous ones; 0 if none does."""
    return next((d for d in range(most, 0, -step) if near and near % d == 0), 0)


def word_regions(size: Size, c: Matmul, target: Target) -> Iterator[tuple[int, int]]:
    """Candidate rows and columns of a task: as many tasks as workers, or a few times as many. With more tasks an operand is packed more
    often."""
    for times in (1, 2, 4):
        tasks = -(-times * target.workers // size.batches)
        for down in (d for d in range(1, tasks + 1) if tasks % d == 0):
            rows, columns = -(-size.m // down), -(-size.n // (tasks // down))
            yield round_up(rows, c.block_m), round_up(columns, COLUMNS)


def packed_lines(c: Matmul, task: Size) -> int:
    """The number of lines that a task packs, each once for every rectangle of sums."""
    rows, columns = held_sums(c, task.m, task.n, SUM_BYTES)
    left = 0 if c.left.copy == "direct" else task.m * -(-task.n // columns)
    return left + (0 if c.right.copy == "panels" else task.n * -(-task.m // rows))


def why_not_words(m: Matmul, element: DType, target: Target) -> str:
    """Why no instruction multiplies such blocks; "" if one does."""
    if not by_words(element, target.instructions):
        return f"there are none of {element}"
    if m.block_m not in (16, 32) or m.block_n != COLUMNS:
        return f"a block is no {m.block_m} x {m.block_n}"
    if m.block_k * element.itemsize % STEP_BYTES:
        return f"{m.block_k} along k are no whole steps"
    return "" if m.right.copy != "direct" else "the right operand is not packed"
