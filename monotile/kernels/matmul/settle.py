"""Fixes how warps load the operands of a product, and how threads divide its sums; on the CPU, how many sums stay in the cache, and
which operands are packed."""

import msgspec

from monotile.codegen.lines import Lines
from monotile.ir.program import Compute
from monotile.kernels.common.cost import round_up
from monotile.kernels.common.epilogue import epilogue_of
from monotile.kernels.common.vectors import elements
from monotile.kernels.family import Settling
from monotile.kernels.matmul.method import Matmul, MatmulRows
from monotile.kernels.matmul.panel_prefetch import prefetches_of
from monotile.kernels.matmul.sides import exact_sides
from monotile.kernels.matmul.tiles import first_sides, in_one_chunk, tile_sides, tiles_of
from monotile.plan.nodes import Method, Prefetch

ROWS = 128  # of the sums that stay in the cache, where a task has many columns
SUMS_BYTES = 1 << 17


def settle(where: Settling) -> Method:
    """The method with exact operands, and its epilogue or its sums."""
    m, view = where.step.method, where.view
    assert isinstance(m, Matmul)
    if where.target.has.register_tiles:
        anchor = where.anchor
        assert isinstance(anchor, Compute)
        site, lines = view.site(where.step), Lines(view)
        for _ in range(3):  # one block may be read in place where several cannot
            before, (left, right) = m, tile_sides(tiles_of(site, anchor, m), lines)
            m = msgspec.structs.replace(m, left=left, right=right, sums=None)
            m = msgspec.structs.replace(m, sums=_sums(where, m))
            if m == before:
                break
        tiles = tiles_of(site, anchor, m)
        ahead = prefetches_of(tiles, first_sides(tiles, lines)[1], m.right.copy)
        own = (Prefetch("own", "block"),) if tiles.at_once else ()
        return msgspec.structs.replace(m, prefetch=(*ahead, *own))
    left, right = exact_sides(where.step, view)
    if isinstance(m, MatmulRows):
        return msgspec.structs.replace(m, left=left, right=right)
    block, threads = (m.block_m, m.columns), where.target.threads // m.teams
    found = epilogue_of(view, view.site(where.step), m.m, m.n, block, threads)
    return msgspec.structs.replace(m, left=left, right=right, epilogue=found)


def _sums(where: Settling, m: Matmul) -> tuple[int, int]:
    """Whole blocks, no more than a task has; one block of columns at least."""
    anchor, dims = where.anchor, where.step.dims
    assert isinstance(anchor, Compute)
    rows, columns = (elements((dims[d],)) for d in (m.m, m.n))
    if in_one_chunk(anchor, m):
        return m.block_m, m.block_n
    return held_sums(m, rows, columns, anchor.body.dtype.itemsize)


def held_sums(m: Matmul, rows: int, columns: int, itemsize: int) -> tuple[int, int]:
    """Rows and columns of the sums that stay in the cache, of those of a task. itemsize: bytes of a sum."""
    rows, columns = round_up(rows, m.block_m), round_up(columns, m.block_n)
    most = SUMS_BYTES // itemsize
    packed = m.instruction == "outer" and m.right.copy not in ("direct", "panels")
    rows = min(rows, round_up(max(ROWS, most // (m.block_n if packed else columns)), m.block_m))
    return rows, min(columns, max(m.block_n, most // rows // m.block_n * m.block_n))
