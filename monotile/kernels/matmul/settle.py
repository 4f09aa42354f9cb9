"""How threads take the sums of a product."""

import msgspec

from monotile.kernels.common.epilogue import epilogue_of
from monotile.kernels.family import Settling
from monotile.kernels.matmul.method import Matmul
from monotile.plan.nodes import Method


def settle(where: Settling) -> Method:
    """The method with its epilogue."""
    m, view = where.step.method, where.view
    assert isinstance(m, Matmul)
    block, threads = (m.block_m, m.block_n), where.target.threads // m.teams
    found = epilogue_of(view, view.site(where.step), m.m, m.n, block, threads)
    return msgspec.structs.replace(m, epilogue=found)
