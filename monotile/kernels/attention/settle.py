"""Fixes how warps load the operands of attention, and how threads divide its sums."""

import msgspec

from monotile.kernels.attention.method import Attend
from monotile.kernels.attention.sides import exact_sides
from monotile.kernels.common.epilogue import WIDEST, Epilogue
from monotile.kernels.common.vectors import elements, exact_width, fitting
from monotile.kernels.family import Settling
from monotile.plan.nodes import Method


def settle(where: Settling) -> Method:
    """The method with exact operands and its epilogue, of whole rows."""
    a = where.step.method
    assert isinstance(a, Attend)
    columns = where.step.dims[a.n]
    width = fitting(exact_width(WIDEST, where.anchor, (columns,)), elements((columns,)))
    query, key, value = exact_sides(where.step, where.view)
    return msgspec.structs.replace(a, query=query, key=key, value=value, epilogue=Epilogue(width))
