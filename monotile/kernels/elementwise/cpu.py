"""Independent elements on the CPU: loops, the innermost one along the last axis."""

from monotile.codegen.loops import Loops, write_element
from monotile.codegen.site import Site, moved, ordered


def write(e: Loops, site: Site) -> None:
    """A loop a range; none where there is one element."""
    ranges = ordered(site)
    if not ranges:
        write_element(e, site, site.point)
        return
    *outer, last = ranges
    with e.over(outer):
        e.along(
            last.variable,
            e.count(last),
            last.origin,
            lambda local: moved(site, last, local),
            e.uses(site),
            lambda point, _: write_element(e, site, point),
        )
