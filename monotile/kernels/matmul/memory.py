"""Bytes of on-chip memory that a CUDA contraction uses: the layouts of `targets/cuda/device/panel.cuh` and `contract.cuh`."""

from monotile.plan.nodes import Attend, Contract, Operand

CELL = 16  # bytes that one copy of full width moves
TEAM = 1024  # bytes: a team's part is a multiple of it


def contract_bytes(c: Contract, itemsize: int, sum_itemsize: int = 4) -> int:
    """Rings of operand chunks, in whose place the slices' sums meet afterwards, behind the chunks of a following task; of all teams.

    itemsize: of the operands' elements. sum_itemsize: of the type that products are summed in.
    """
    chunk = chunk_bytes(c, itemsize)
    ring = c.slices * c.depth * chunk
    team = max(ring, c.following * chunk + sum_bytes(c, sum_itemsize))
    return c.teams * -(-team // TEAM) * TEAM if c.teams > 1 else team


def chunk_bytes(c: Contract, itemsize: int) -> int:
    """One chunk of both operands."""
    left = panel_bytes(c.block_m, c.block_k * c.runs, c.left, itemsize)
    return left + panel_bytes(c.block_n, c.block_k, c.right, itemsize)


def sum_bytes(c: Contract, sum_itemsize: int = 4) -> int:
    """The sums of all slices of a team."""
    pitch = c.block_n + (8 if c.block_n % 16 == 0 else 0)
    return c.slices * c.block_m * pitch * sum_itemsize


def panel_bytes(extent: int, depth: int, operand: Operand, itemsize: int) -> int:
    """One chunk of an operand: `extent` rows by `depth` values of k, in lines of whole cells along its major direction."""
    inner, outer = (extent, depth) if operand.major == "mn" else (depth, extent)
    cells = -(-inner * itemsize // CELL)
    blocks = operand.major == "mn" and itemsize == 2 and cells % 8 == 0
    pitch = cells if blocks or cells & (cells - 1) == 0 else cells | 1
    return outer * pitch * CELL


def attend_bytes(a: Attend, features: int, columns: int, warps: int) -> int:
    """Queries and every slice's ring of keys and values; in their place what the slices have found meets afterwards."""
    slices = a.slices(warps)
    pitch = columns + (8 if columns % 16 == 0 else 0)
    found = slices * a.block_m * (pitch + 2) * 4
    if (
        a.instruction == "wgmma"
    ):  # panels of 64 features or columns, one behind the other: lines of 128 bytes
        ring = slices * a.depth * a.chunk * (features + columns) * 2
        return max(a.block_m * features * 2 + ring, found)
    deep = -(-features // 16) * 16
    query = _lined(panel_bytes(a.block_m, deep, a.query, 2))
    key = _lined(panel_bytes(a.chunk, deep, a.key, 2))
    value = _lined(panel_bytes(columns, a.chunk, a.value, 2))
    return max(query + slices * a.depth * (key + value), found)


def _lined(nbytes: int) -> int:
    """Panels begin at multiples of 128 bytes."""
    return -(-nbytes // 128) * 128
