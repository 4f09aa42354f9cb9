"""The element-wise family's entry in the registry."""

from monotile.kernels.common.collisions import check_apart
from monotile.kernels.common.vectors import exact_width
from monotile.kernels.elementwise.cpu import write as write_c
from monotile.kernels.elementwise.cuda import write as write_cuda
from monotile.kernels.elementwise.cuda import write_prefetch, write_supply
from monotile.kernels.elementwise.cuts import cut, in_rows
from monotile.kernels.elementwise.method import Map
from monotile.kernels.elementwise.prefetch import prefetch
from monotile.kernels.elementwise.settle import settle
from monotile.kernels.family import Checked, Family
from monotile.plan.invalid import fail


def check(c: Checked) -> None:
    """Fails unless vectors divide a task's elements; for a Scatter, also if two writes may collide."""
    step, method = c.step, c.step.method
    assert isinstance(method, Map)
    check_apart(c, range(len(step.dims)))
    if method.vector < 1:
        fail(f"{c.stage.name}: a thread takes none of {c.anchor.out.name} at once")
    if c.target.has.lockstep and exact_width(method.vector, c.anchor, step.dims) != method.vector:
        fail(
            f"{c.stage.name}: threads cannot take {method.vector} neighbours of {c.anchor.out.name}"
        )


ELEMENTWISE = Family(
    name="elementwise",
    methods=(Map,),
    cut=cut,
    in_rows=in_rows,
    prefetch=prefetch,
    bounded=lambda _anchor, _method, _target: True,
    settle=settle,
    check=check,
    write={"c": write_c, "cuda": write_cuda},
    write_prefetch={"cuda": write_prefetch},
    write_supply={"cuda": write_supply},
)
