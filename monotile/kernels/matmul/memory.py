"""Bytes of on-chip memory that a CUDA contraction uses: the layouts of `targets/cuda/device/contract.cuh`."""

from monotile.kernels.common.panels import panel_bytes
from monotile.kernels.matmul.method import Matmul

TEAM = 1024  # bytes: a team's part is a multiple of it
LINE_BYTES = 128  # of a panel as warpgroups read it


def contract_bytes(c: Matmul, itemsize: int, sum_itemsize: int = 4) -> int:
    """Bytes of the rings of operand chunks of all teams. Afterwards the slices' sums are combined in the same memory, after the prefetched
    chunks of the next task.

    itemsize: of the operands' elements. sum_itemsize: of the accumulation type.
    """
    chunk = chunk_bytes(c, itemsize)
    ring = c.slices * (c.depth * chunk + rest_bytes(c, itemsize))
    team = max(ring, c.following * chunk + sum_bytes(c, sum_itemsize))
    return c.teams * -(-team // TEAM) * TEAM if c.teams > 1 else team


def rest_bytes(c: Matmul, itemsize: int) -> int:
    """The remainders beyond TF32 of the right operand, of two chunks of a slice, where warpgroups read it."""
    return 2 * panel_bytes(c.block_n, c.block_k, c.right, itemsize) if c.in_parts else 0


def chunk_bytes(c: Matmul, itemsize: int) -> int:
    """One chunk of both operands."""
    left = panel_bytes(c.block_m, c.block_k * c.runs, c.left, itemsize)
    return left + panel_bytes(c.block_n, c.block_k, c.right, itemsize)


def sum_bytes(c: Matmul, sum_itemsize: int = 4) -> int:
    """The sums of all slices of a team."""
    pitch = c.block_n + (8 if c.block_n % 16 == 0 else 0)
    return c.slices * c.block_m * pitch * sum_itemsize
