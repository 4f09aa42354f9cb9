"""Scatters on the CPU: serial loops."""

from monotile.codegen.loops import Loops, write_element
from monotile.codegen.site import Site


def write(e: Loops, site: Site) -> None:
    """Loops over all ranges in order."""
    with e.over(site.ranges):
        write_element(e, site, site.point)
