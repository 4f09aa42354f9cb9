"""Elements of which some CPUs multiply and add the neighbours in 32 bits at once: Intel's AMX (`kernels/matmul/words.py`).

A panel of a right operand has two tiles of columns; 64 bytes of these along k are multiplied at once.
"""

from collections.abc import Container

from monotile.ir.dtype import DType

TILE_COLUMNS = 16
COLUMNS = 2 * TILE_COLUMNS  # of a panel
WORD_BYTES = 4
STEP_BYTES = 64  # along k: chunks are whole steps
_BY_TYPE = {DType.BF16: "amx.bf16", DType.I8: "amx.int8", DType.U8: "amx.int8"}


def by_words(dtype: DType, instructions: Container[str]) -> str:
    """The target's instruction that does so with elements of a type; "" where there is none."""
    name = _BY_TYPE.get(dtype, "")
    return name if name in instructions else ""
