"""Determines the vector width of a map's threads."""

import msgspec

from monotile.kernels.common.vectors import elements, exact_width, narrowed
from monotile.kernels.elementwise.method import Map
from monotile.kernels.family import Settling
from monotile.plan.nodes import Method


def settle(where: Settling) -> Method:
    """The method with vectors that divide a task's elements, narrower where threads would be idle."""
    step = where.step
    assert isinstance(step.method, Map)
    if not where.target.has.lockstep:
        return step.method
    width = exact_width(step.method.vector, where.anchor, step.dims)
    width = narrowed(width, elements(step.dims), where.target.threads)
    return msgspec.structs.replace(step.method, vector=width)
