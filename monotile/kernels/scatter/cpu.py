"""Writes in order on the CPU."""

from monotile.codegen.loops import Loops, write_element
from monotile.codegen.site import Site


def write(e: Loops, site: Site) -> None:
    """Plain loops, as the axes come."""
    with e.over(site.ranges):
        write_element(e, site, site.point)
