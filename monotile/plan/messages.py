"""How messages lie in memory."""

import math

from monotile.ir.expr import Tensor

TAGGED = 8  # bytes of a value with its tag
WIDEST = 4  # bytes of a value


def message_stride(t: Tensor) -> int:
    """Bytes from the message of one iteration to that of the next."""
    return -(-math.prod(t.shape) * TAGGED // 16) * 16
