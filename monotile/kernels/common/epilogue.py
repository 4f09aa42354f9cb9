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
WORD = 4  # bytes that a shift moves: an element is no wider


class Epilogue(Frozen, frozen=True):
    """width: neighbouring sums that a thread takes at once.
    by_rows: no vector of some results is aligned in place, as their rows are of odd length: they wait in cells on chip and are stored row
    by row.
    steady: a thread has several turns and the same columns in all of them, so it loads operands that depend on these alone once.
    """

    width: int = 1
    by_rows: bool = False
    steady: bool = False

    def describe(self) -> str:
        """In a few words."""
        text = f"sums x{self.width}"
        text += " by rows" if self.by_rows else ""
        return text + (", steady columns" if self.steady else "")


@dataclass(frozen=True, slots=True)
class RowResult:
    """A result and one of its places. cell: the byte of its vector's cell on chip at which its elements begin."""

    made: Compute
    place: Place
    cell: int


def epilogue_of(
    view: View, site: Site, m: int, n: int, block: tuple[int, int], threads: int
) -> Epilogue:
    """The widest possible. m, n: dims of the rows and columns. block: of sums, taken by so many threads at a time."""
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
    """Why threads cannot take the sums in this way; None where they can."""
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
    """Results of a product with columns along the dim `n` that are stored by rows, so that its epilogue can take `width` neighbours at
    once.

    None where rows are of even length, or where some result can be stored as vectors in neither way; nor where one stays on chip, or is
    computed from several sums.
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
