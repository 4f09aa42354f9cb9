"""The family, as the rest of the compiler sees it."""

from monotile.kernels.family import Family
from monotile.kernels.transpose.check import check
from monotile.kernels.transpose.cuda import write
from monotile.kernels.transpose.cuts import cut, finer
from monotile.kernels.transpose.method import Interleave, Transpose

TRANSPOSE = Family(
    name="transpose",
    methods=(Transpose, Interleave),
    cut=cut,
    exclusive=True,
    finer=finer,
    check=check,
    write={"cuda": write},
)
