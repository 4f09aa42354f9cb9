"""The attention family's entry in the registry."""

from monotile.kernels.attention.check import check, why_not_late
from monotile.kernels.attention.cuda import write
from monotile.kernels.attention.cuts import cut, match
from monotile.kernels.attention.match import Attention
from monotile.kernels.attention.method import Attend
from monotile.kernels.attention.runs import in_runs
from monotile.kernels.attention.settle import settle
from monotile.kernels.family import Family

ATTENTION = Family(
    name="attention",
    methods=(Attend,),
    match=match,
    finds=Attention,
    in_runs=in_runs,
    cut=cut,
    exclusive=True,
    settle=settle,
    check=check,
    why_not_late=why_not_late,
    bounded=lambda anchor, _method, _target: len(anchor.reduce) == 1,
    write={"cuda": write},
)
