"""The product family's entry in the registry."""

from monotile.kernels.family import Family
from monotile.kernels.matmul.check import bounded, check, why_not_late
from monotile.kernels.matmul.cpu import write as write_c
from monotile.kernels.matmul.cuda import write as write_cuda
from monotile.kernels.matmul.cuda_tasks import write_tasks
from monotile.kernels.matmul.cuts import cut, tiled
from monotile.kernels.matmul.gate import Gate, match
from monotile.kernels.matmul.in_rows import in_rows
from monotile.kernels.matmul.method import Matmul, MatmulGate, MatmulRows
from monotile.kernels.matmul.panels import panels
from monotile.kernels.matmul.prefetch import prefetch
from monotile.kernels.matmul.settle import settle

MATMUL = Family(
    name="matmul",
    methods=(Matmul, MatmulGate, MatmulRows),
    match=match,
    finds=Gate,
    cut=cut,
    exclusive=True,
    in_rows=in_rows,
    tiled=tiled,
    prefetch=prefetch,
    settle=settle,
    check=check,
    bounded=bounded,
    why_not_late=why_not_late,
    panels=panels,
    write={"c": write_c, "cuda": write_cuda},
    write_tasks={"cuda": write_tasks},
)
