"""The Scatter family's entry in the registry."""

from monotile.analysis.row_lists import RowLists
from monotile.kernels.family import Family
from monotile.kernels.scatter.check import check
from monotile.kernels.scatter.cpu import write as write_c
from monotile.kernels.scatter.cuda import write as write_cuda
from monotile.kernels.scatter.cuts import cut, in_rows, match
from monotile.kernels.scatter.method import Listed, ListRows, Serial
from monotile.kernels.scatter.prefetch import prefetch

SCATTER = Family(
    name="scatter",
    methods=(Serial, Listed, ListRows),
    match=match,
    finds=RowLists,
    cut=cut,
    in_rows=in_rows,
    prefetch=prefetch,
    check=check,
    write={"c": write_c, "cuda": write_cuda},
)
