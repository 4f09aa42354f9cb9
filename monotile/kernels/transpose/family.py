"""The transpose family's entry in the registry."""

from monotile.kernels.family import Family
from monotile.kernels.transpose.check import check
from monotile.kernels.transpose.cuda import write
from monotile.kernels.transpose.cuts import cut, finer
from monotile.kernels.transpose.method import Interleave, Transpose, TransposeTiles
from monotile.kernels.transpose.settle import settle

TRANSPOSE = Family(
    name="transpose",
    methods=(Transpose, Interleave, TransposeTiles),
    cut=cut,
    exclusive=True,
    finer=finer,
    settle=settle,
    check=check,
    write={"cuda": write},
)
