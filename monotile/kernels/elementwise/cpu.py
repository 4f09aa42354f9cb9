"""Maps on the CPU: loops, the innermost one along the last axis."""

import math

from monotile.codegen.loops import Loops, write_element
from monotile.codegen.site import Point, Site, moved, ordered
from monotile.ir.expr import Expr, substitute
from monotile.kernels.common.cpu_columns import (
    MOST_HELD,
    hold_columns,
    of_columns,
    others,
    read_columns,
)

FEWEST = 4  # least rows of a task for which values per column are computed once


def write(e: Loops, site: Site) -> None:
    """A loop per range; none if there is a single element."""
    ranges = ordered(site)
    if not ranges:
        write_element(e, site, site.point)
        return
    *outer, last = ranges
    axis = site.anchor.axes[last.dim.axes[-1]]
    worth = axis.extent <= MOST_HELD and FEWEST * axis.extent <= math.prod(
        r.dim.tile for r in ranges
    )
    site, held = of_columns(site, frozenset({axis})) if worth else (site, ())
    hold_columns(e, held, axis, site.point)
    uses = [others(x, held) for x in e.uses(site)]

    def at(local: Expr) -> Point:
        return moved(site, last, local)

    with (
        e.over(outer),
        e.rows(last.variable, e.count(last), last.origin, at, uses) as row,
    ):
        here = at(row.at)

        def write_one() -> None:
            read_columns(e, held, here[axis.name])
            write_element(e, site, here)

        e.each(e.repeated(row, site), [substitute(x, dict(here)) for x in uses], write_one)
