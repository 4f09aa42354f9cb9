"""Determines the vector widths of tiles."""

from collections.abc import Mapping, Sequence

import msgspec

from monotile.codegen.address import WIDEST, alignment, readable, stored
from monotile.ir.program import Compute
from monotile.kernels.common.vectors import fitting
from monotile.kernels.family import Settling
from monotile.kernels.transpose.match import copied
from monotile.kernels.transpose.method import TransposeTiles
from monotile.plan.nodes import Dim, Method
from monotile.plan.places import Place


def settle(where: Settling) -> Method:
    """The method with the widest vectors that both sides allow."""
    step = where.step
    if not isinstance(step.method, TransposeTiles):
        return step.method
    assert isinstance(where.anchor, Compute)
    vector = exact_vector(step.method, where.anchor, step.dims, where.view.places)
    return msgspec.structs.replace(step.method, vector=vector)


def exact_vector(
    m: TransposeTiles, s: Compute, dims: Sequence[Dim], places: Mapping[str, tuple[Place, ...]]
) -> int:
    """The number of neighbours that divides both sides, and is aligned in the operand and in the result."""
    x = copied(s)
    assert x is not None
    size = x.dtype.itemsize
    aligned = (
        alignment(p)
        for p in (readable(places[x.tensor.name], own=False), *stored(places[s.out.name]))
    )
    wanted = min(WIDEST, *aligned) // size
    return fitting(max(1, wanted), dims[m.rows].extent, dims[m.columns].extent)
