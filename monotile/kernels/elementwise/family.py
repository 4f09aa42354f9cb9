"""The family, as the rest of the compiler sees it."""

from monotile.kernels.common.collisions import check_apart
from monotile.kernels.elementwise.cpu import write as write_c
from monotile.kernels.elementwise.cuda import write as write_cuda
from monotile.kernels.elementwise.cuda import write_prefetch
from monotile.kernels.elementwise.cuts import cut, in_rows
from monotile.kernels.elementwise.method import Map
from monotile.kernels.elementwise.prefetch import prefetch
from monotile.kernels.family import Checked, Family


def check(c: Checked) -> None:
    """Of a Scatter no two writes meet."""
    check_apart(c, range(len(c.step.dims)))


ELEMENTWISE = Family(
    name="elementwise",
    methods=(Map,),
    cut=cut,
    in_rows=in_rows,
    prefetch=prefetch,
    check=check,
    write={"c": write_c, "cuda": write_cuda},
    write_prefetch={"cuda": write_prefetch},
)
