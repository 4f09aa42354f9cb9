"""The entry in the registry of the family of products with streamed weights."""

from monotile.kernels.family import Family
from monotile.kernels.gemv.check import check, why_not_late
from monotile.kernels.gemv.cuda import write, write_supply
from monotile.kernels.gemv.cuts import cut, in_rows
from monotile.kernels.gemv.method import Gemv, GemvColumns, GemvMma

GEMV = Family(
    name="gemv",
    methods=(Gemv, GemvMma, GemvColumns),
    cut=cut,
    exclusive=True,
    in_rows=in_rows,
    check=check,
    why_not_late=why_not_late,
    write={"cuda": write},
    write_supply={"cuda": write_supply},
)
