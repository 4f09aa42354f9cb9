"""How a product, or attention, loads one of its operands."""

from collections.abc import Mapping, Sequence
from typing import Literal

from monotile.analysis.masked import choice
from monotile.codegen.address import alignment, readable
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr
from monotile.kernels.common.vectors import fitting
from monotile.plan.places import Frozen, Place


class Operand(Frozen, frozen=True):
    """major:  the direction that is contiguous in memory: along "k", along "mn" (m of the left side, n of the right), or "none".
    vector: elements one copy moves.
    copy:   "direct" (read in place; on a GPU into a thread's registers), "async" (asynchronous copies of vector * itemsize bytes into
            shared memory), "element" (evaluated one by one into shared memory; on the CPU packed in a buffer, in vectors where its major
            direction allows it), "panels" (on the CPU: from a copy of the weight in the order of packed buffers, `plan.places.Panels`),
            "unaligned" (vectors at any alignment along "k", which threads assemble from the aligned ones around them and store into
            shared memory), "decode" (codes, on the CPU decoded along k into a buffer), "sparse" (2:4: two of each four values along k
            and their positions, copied asynchronously in their stored form: `analysis.two_of_four`), "runs" (on the CPU: in place, by a
            table of the beginnings of each row's runs along k; zeros for masked ones).
    """

    major: Literal["k", "mn", "none"]
    vector: int
    copy: Literal["direct", "async", "element", "panels", "unaligned", "decode", "sparse", "runs"]

    @property
    def through_registers(self) -> bool:
        """Whether it goes through threads' registers into on-chip memory."""
        return self.copy in ("element", "unaligned")

    def describe(self) -> str:
        """In a few words."""
        return (
            f"{self.copy} x{self.vector} along {self.major}" if self.major != "none" else self.copy
        )


def exact_operand(
    wanted: Operand,
    factor: Expr,
    element: DType,
    inner: Sequence[int],
    places: Mapping[str, tuple[Place, ...]],
) -> Operand:
    """The best way for warps to load `factor`: copied, if that is wanted and copies have four bytes at least, else evaluated.

    element: its type on chip. inner: extents along its major direction, each of which a vector divides.
    """
    if wanted.copy == "unaligned":
        return wanted
    vector = fitting(min(16 // element.itemsize, wanted.vector), *inner)
    in_memory = wanted.copy in ("async", "direct") and factor.dtype is element
    copied = (choice(factor) or ()) if in_memory else ()
    for x in copied:
        place = readable(places[x.load.tensor.name], own=False)
        vector = min(vector, alignment(place) // element.itemsize)
    if wanted.copy == "direct":
        return Operand(wanted.major, vector, "direct")
    copies = bool(copied) and vector * element.itemsize >= 4
    return Operand(wanted.major, vector, "async" if copies else "element")
