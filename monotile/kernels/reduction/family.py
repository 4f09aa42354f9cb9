"""The reduction family's entry in the registry."""

from monotile.kernels.family import Family
from monotile.kernels.reduction.check import check, why_not_late
from monotile.kernels.reduction.cpu import write as write_c
from monotile.kernels.reduction.cuda import write as write_cuda
from monotile.kernels.reduction.cuda import write_prefetch
from monotile.kernels.reduction.cuts import cut, in_rows
from monotile.kernels.reduction.method import Reduce, ReduceMoments
from monotile.kernels.reduction.one_pass import one_pass
from monotile.kernels.reduction.prefetch import pinnable, prefetch
from monotile.kernels.reduction.settle import settle

REDUCTION = Family(
    name="reduction",
    methods=(Reduce, ReduceMoments),
    cut=cut,
    in_rows=in_rows,
    prefetch=prefetch,
    pinnable=pinnable,
    one_pass=one_pass,
    settle=settle,
    check=check,
    bounded=lambda _anchor, _method, _target: True,
    why_not_late=why_not_late,
    write={"c": write_c, "cuda": write_cuda},
    write_prefetch={"cuda": write_prefetch},
)
