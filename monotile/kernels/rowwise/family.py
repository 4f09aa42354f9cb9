"""The row-wise family's entry in the registry."""

from monotile.kernels.family import Family
from monotile.kernels.rowwise.check import check, why_not_late
from monotile.kernels.rowwise.cuda import write
from monotile.kernels.rowwise.cuts import cut
from monotile.kernels.rowwise.method import HoldRows

ROWWISE = Family(
    name="rowwise",
    methods=(HoldRows,),
    cut=cut,
    check=check,
    why_not_late=why_not_late,
    write={"cuda": write},
)
