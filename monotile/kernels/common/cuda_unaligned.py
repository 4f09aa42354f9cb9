"""Results of a contraction that leave it by rows, because these are of odd length: no vector of them is aligned in place.

What the text written here means is said in `targets/cuda/device/contract_sums.cuh`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from monotile.codegen.address import stored
from monotile.codegen.base import plus
from monotile.codegen.site import Range, Site
from monotile.codegen.vector import LANE, VectorEmitter
from monotile.ir.expr import Axis, idx
from monotile.ir.program import Compute
from monotile.kernels.common.cuda_threads import neighbours, placed
from monotile.plan.nodes import Place, Shared

WORD = 4  # bytes that a shift moves: an element is no wider


@dataclass(frozen=True, slots=True)
class RowResult:
    """A result and one of its places. cell: the byte of its vector's place on chip at which its elements begin."""

    made: Compute
    place: Place
    cell: int


def row_results(
    e: VectorEmitter, site: Site, n: Range, width: int, sum_bytes: int
) -> tuple[RowResult, ...]:
    """What leaves a contraction with columns `n` by rows, so that its epilogue can take `width` neighbours at once.

    Nothing where rows are of even length, or where some result can be stored as vectors in neither way; nor where one stays on
    chip, to which the way would be no shorter. sum_bytes: of a sum.
    """
    last = site.anchor.axes[-1]
    walked = n.dim.axes[-1] == len(site.anchor.axes) - 1
    if not walked or last.extent % 2 == 0 or n.variable.extent < width:
        return ()
    lane = Axis(LANE, width)
    vector = placed(site.point, {n.variable.name: neighbours(n.variable, width)})
    found: list[RowResult] = []
    end = 0  # of what a vector's cell holds
    for s in (site.anchor, *site.followers):
        if not isinstance(s, Compute) or e.hands_on(s.out):
            return ()
        size = s.out.dtype.itemsize
        start = -(-end // (width * size)) * width * size
        for place in stored(e.plan.places[s.out.name]):
            index = [vector[a.name] for a in s.axes]
            if e.first_of(s.out, index, place, lane, {LANE}) is not None:
                continue  # there every vector is aligned
            index = [site.point[a.name] for a in s.axes]
            straight = e.strides(s.out, index, place, (n.variable,)) == (1,)
            if size > WORD or isinstance(place, Shared) or not straight:
                return ()
            found.append(RowResult(s, place, start))
            end = start + width * size
    return tuple(found) if end <= width * sum_bytes else ()


def write_copies(
    e: VectorEmitter, site: Site, m: Range, n: Range, results: Sequence[RowResult]
) -> None:
    """The lambda `rows`, which has the results copied from their cells: each by where a row of it begins."""
    row = m.variable.name
    point = placed(site.point, {n.variable.name: idx(0)})
    with e.writer.open("auto rows = [&](const mt::Cells<Product>& cells)", fence=True, tail=";"):
        for r in results:
            head = f"cells.copy<{r.cell}>([&](idx {row})"
            with e.writer.open(head, [row], fence=True, tail=");"):
                index = [point[a.name] for a in r.made.axes]
                start = plus(*e.address(r.made.out, index, r.place))
                e.writer.write(f"return {start};")
