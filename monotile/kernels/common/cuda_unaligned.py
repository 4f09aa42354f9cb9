"""Stores results of a contraction row by row where rows have odd length, so that no vector of them is aligned.

The meaning of the emitted text is documented in `targets/cuda/device/contract_sums.cuh`.
"""

from collections.abc import Sequence

from monotile.codegen.base import plus
from monotile.codegen.site import Range, Site
from monotile.codegen.vector import VectorEmitter
from monotile.ir.expr import idx
from monotile.kernels.common.cuda_threads import placed
from monotile.kernels.common.epilogue import RowResult


def write_copies(
    e: VectorEmitter, site: Site, m: Range, n: Range, results: Sequence[RowResult]
) -> None:
    """Writes the lambda `rows`, which copies the results from their cells to the start address of each row."""
    row = m.variable.name
    point = placed(site.point, {n.variable.name: idx(0)})
    with e.writer.open("auto rows = [&](const mt::Cells<Product>& cells)", fence=True, tail=";"):
        for r in results:
            head = f"cells.copy<{r.cell}>([&](idx {row})"
            with e.writer.open(head, [row], fence=True, tail=");"):
                index = [point[a.name] for a in r.made.axes]
                start = plus(*e.address(r.made.out, index, r.place))
                e.writer.write(f"return {start};")
