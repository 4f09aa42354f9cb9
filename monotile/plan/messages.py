"""Memory layout of messages."""

import math
from collections.abc import Sequence

from monotile.ir.expr import Tensor
from monotile.plan.places import BoxDim

TAGGED = 8  # bytes of a value with its tag
WIDEST = 4  # bytes of a value


def message_stride(t: Tensor) -> int:
    """Bytes from the message of one iteration to that of the next."""
    return -(-math.prod(t.shape) * TAGGED // 16) * 16


def receive_vector(box: Sequence[BoxDim], t: Tensor) -> int:
    """How many values of the part `box` of the message `t` one access may load: two fit in 16 bytes, with their tags."""
    if not box:
        return 1
    tile = 0 if box[-1].stage is None else box[-1].tile
    return 1 if (box[-1].extent | tile | t.shape[-1]) % 2 else 2
