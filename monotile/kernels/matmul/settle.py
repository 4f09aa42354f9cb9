"""How warps read the operands of a product, and how threads take its sums."""

import msgspec

from monotile.kernels.common.epilogue import epilogue_of
from monotile.kernels.family import Settling
from monotile.kernels.matmul.method import Matmul
from monotile.kernels.matmul.sides import exact_sides
from monotile.plan.nodes import Method


def settle(where: Settling) -> Method:
    """The method with exact operands and its epilogue."""
    m, view = where.step.method, where.view
    assert isinstance(m, Matmul)
    block, threads = (m.block_m, m.block_n), where.target.threads // m.teams
    found = epilogue_of(view, view.site(where.step), m.m, m.n, block, threads)
    left, right = exact_sides(where.step, view)
    return msgspec.structs.replace(m, left=left, right=right, epilogue=found)
