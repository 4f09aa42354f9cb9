"""How threads divide the epilogue of a product, or of attention."""

from dataclasses import dataclass

from monotile.codegen.address import stored
from monotile.codegen.packs import LANE
from monotile.codegen.site import Site
from monotile.codegen.view import View
from monotile.ir.dtype import DType
from monotile.ir.expr import Axis
from monotile.ir.program import Compute
from monotile.kernels.common.cuda_threads import neighbours, placed
from monotile.kernels.common.vectors import exact_width, fitting
from monotile.plan.nodes import Dim
from monotile.plan.places import ON_CHIP, Frozen, Place

WIDEST = 4  # sums at once
WORD = 4  # bytes of a shifted word; an element is no wider


class Epilogue(Frozen, frozen=True):
    """width: neighbouring sums of a thread at once.
    by_rows: rows of some results have odd length, so that no vector is aligned in place: their vectors are kept in on-chip cells and copied
    row by row.
    steady: a thread has several iterations with the same columns in all of them, so it loads operands that depend only on these once.
    """

    width: int = 1
    by_rows: bool = False
    steady: bool = False

    def describe(self) -> str:
        """Short text for the printed Plan."""
        text = f"sums x{self.width}"
        text += " by rows" if self.by_rows else ""
        return text + (", steady columns" if self.steady else "")


@dataclass(frozen=True, slots=True)
class RowResult:
    """A result that is copied row by row, and one of its places. cell: byte offset of its elements in a vector's on-chip cell."""

    made: Compute
    place: Place
    cell: int


def epilogue_of(
    view: View, site: Site, m: int, n: int, block: tuple[int, int], threads: int
) -> Epilogue:
    """The epilogue with the widest vectors. m, n: dims of the rows and columns. block: sums that `threads` threads process at a time."""
    anchor, columns = site.anchor, site.step.dims[n]
    assert isinstance(anchor, Compute)
    width, by_rows = fitting(exact_width(WIDEST, anchor, (columns,)), block[1]), False
    if width == 1 and block[1] % WIDEST == 0 and row_results(view, site, n, WIDEST):
        width, by_rows = WIDEST, True
    return Epilogue(width, by_rows, _steady(site.step.dims[m], columns, block, threads, width))


def _steady(m: Dim, n: Dim, block: tuple[int, int], threads: int, width: int) -> bool:
    """`FIXED_COLUMNS` of `mt::Product`."""
    rows, columns = min(block[0], m.tile), min(block[1], n.tile)
    across = -(-columns // width)
    return across <= threads and 8 * (threads % across) <= threads and rows * across > threads


def why_not(
    given: Epilogue,
    view: View,
    site: Site,
    m: int,
    n: int,
    block: tuple[int, int],
    threads: int,
) -> str | None:
    """Why threads cannot process the sums in this way; None if they can."""
    dims = site.step.dims
    if given.width not in (1, 2, WIDEST) or block[1] % given.width:
        return f"{given.width} sums at once of {block[1]} columns"
    if given.by_rows:
        if not row_results(view, site, n, given.width):
            return "no results have to leave by rows, or they cannot"
    elif exact_width(given.width, site.anchor, (dims[n],)) != given.width:
        return f"{given.width} sums at once do not divide its columns"
    if given.steady and not _steady(dims[m], dims[n], block, threads, given.width):
        return "a thread has other columns from one turn to the next"
    return None


def row_results(view: View, site: Site, n: int, width: int) -> tuple[RowResult, ...]:
    """The results of a product with columns along the dim `n` that are stored by rows, so that its epilogue can process `width` neighbours
    at once.

    () if rows have even length, if some result can be stored as vectors in neither way, or if one stays on chip or is computed from several
    sums.
    """
    anchor, r = site.anchor, site.ranges[n]
    last = anchor.axes[-1]
    walked = r.dim.axes[-1] == len(anchor.axes) - 1
    if not walked or last.extent % 2 == 0 or r.variable.extent < width or site.before:
        return ()
    lane = Axis(LANE, width)
    vector = placed(site.point, {r.variable.name: neighbours(r.variable, width)})
    found: list[RowResult] = []
    end = 0  # end of a vector's cell
    for s in (anchor, *site.followers):
        if not isinstance(s, Compute) or s.out.name in view.sent:
            return ()
        size = s.out.dtype.itemsize
        start = -(-end // (width * size)) * width * size
        for place in stored(view.places[s.out.name]):
            if view.packs(s.out, [vector[a.name] for a in s.axes], place, lane):
                continue  # every vector is aligned there
            index = [site.point[a.name] for a in s.axes]
            straight = view.strides(s.out, index, place, (r.variable,)) == (1,)
            if size > WORD or isinstance(place, ON_CHIP) or not straight:
                return ()
            found.append(RowResult(s, place, start))
            end = start + width * size
    assert isinstance(anchor, Compute)
    sum_bytes = 8 if anchor.body.dtype is DType.F64 else 4
    return tuple(found) if end <= width * sum_bytes else ()
