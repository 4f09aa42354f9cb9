"""The matrix product that a Compute poses: its extents, and the properties that its cost depends on."""

from dataclasses import dataclass

from monotile.kernels.common.product import Product
from monotile.kernels.common.register_rows import RowWork


@dataclass(frozen=True, slots=True)
class Size:
    """m x n x k, so many times: of a whole product, or of one task's part of it."""

    m: int
    n: int
    k: int
    batches: int = 1


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a product's operands."""

    left: float
    right: float


@dataclass(frozen=True, slots=True)
class Problem:
    """A product with its epilogue. operations: of the epilogue, for each sum. stored: bytes that are stored of one. memory: operands
    that no cache holds. rows: the work of each row of sums, where the epilogue is row-wise; last: the innermost of a row's extents.
    products: how many are side by side, several of whose sums give one result; the size is that of all of them. read: all bytes read
    of the operands, of one batch, where regions are chosen by it.
    """

    product: Product
    size: Size
    operations: float
    stored: int
    memory: Memory
    rows: RowWork | None = None
    last: int = 1
    products: int = 1
    read: Memory = Memory(0, 0)

    @property
    def results(self) -> int:
        return self.size.batches * self.size.m * self.size.n // self.products
