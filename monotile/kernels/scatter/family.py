"""The family, as the rest of the compiler sees it."""

from monotile.kernels.common.collisions import check_apart
from monotile.kernels.family import Checked, Family
from monotile.kernels.scatter.cpu import write as write_c
from monotile.kernels.scatter.cuda import write as write_cuda
from monotile.kernels.scatter.cuts import cut, in_rows
from monotile.kernels.scatter.method import Serial
from monotile.kernels.scatter.prefetch import prefetch


def check(c: Checked) -> None:
    """Threads and tasks share only axes along which no two writes meet."""
    method = c.step.method
    assert isinstance(method, Serial)
    cut_dims = (k for k, d in enumerate(c.step.dims) if d.stage is not None)
    check_apart(c, {*method.parallel, *cut_dims})


SCATTER = Family(
    name="scatter",
    methods=(Serial,),
    cut=cut,
    in_rows=in_rows,
    prefetch=prefetch,
    check=check,
    write={"c": write_c, "cuda": write_cuda},
)
