"""Panels: chunks of operands in on-chip memory, as `targets/cuda/device/panel.cuh` lays them out."""

import math

from monotile.kernels.common.cost import LINE
from monotile.kernels.common.operand import Operand
from monotile.targets.model import Matmul

CELL = 16  # bytes that one copy of full width moves


def panel_bytes(extent: int, depth: int, operand: Operand, itemsize: int) -> int:
    """Bytes of one chunk of an operand: `extent` rows by `depth` values of k, in lines of whole cells along its major direction; half of
    them for a sparse one."""
    depth = depth // 2 if operand.copy == "sparse" else depth
    inner, outer = (extent, depth) if operand.major == "mn" else (depth, extent)
    cells = -(-inner * itemsize // CELL)
    blocks = operand.major == "mn" and itemsize == 2 and cells % 8 == 0
    pitch = cells if blocks or cells & (cells - 1) == 0 else cells | 1
    return outer * pitch * CELL


def line_use(side: Operand, block: int, block_k: int, size: int, model: Matmul) -> float:
    """The fraction of the bandwidth that a panel's runs use, by the lines that they touch. Runs that lines do not divide into are also
    cut by the 32 pieces that a warp loads at once."""
    if side.through_registers:
        return model.evaluated
    run = (block_k if side.major == "k" else block) * size
    aligned = math.gcd(run, LINE) == min(run, LINE)
    lines = (
        1 + (run - math.gcd(run, LINE)) / LINE
    )  # runs are one after the other, the first at the start of a line
    return (run / (lines * LINE)) ** (model.aligned if aligned else model.unaligned)
