"""How threads take the sums of attention."""

import msgspec

from monotile.kernels.attention.method import Attend
from monotile.kernels.common.epilogue import WIDEST, Epilogue
from monotile.kernels.common.vectors import elements, exact_width, fitting
from monotile.kernels.family import Settling
from monotile.plan.nodes import Method


def settle(where: Settling) -> Method:
    """The method with its epilogue, of whole rows."""
    a = where.step.method
    assert isinstance(a, Attend)
    columns = where.step.dims[a.n]
    width = fitting(exact_width(WIDEST, where.anchor, (columns,)), elements((columns,)))
    return msgspec.structs.replace(a, epilogue=Epilogue(width))
