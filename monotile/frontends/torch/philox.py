"""The random bits of `ir/expr.py`'s philox as an operator of PyTorch, for modules that draw by counters of their own."""

from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("monotile", "FRAGMENT")
_LIBRARY.define("philox(Tensor counter, Tensor key) -> Tensor")
_LOW = 0xFFFFFFFF  # of the 32 lower bits


def _philox(counter: Tensor, key: Tensor) -> Tensor:
    counter, key = torch.broadcast_tensors(counter, key)
    zero = torch.zeros_like(counter)
    words = [counter & _LOW, (counter >> 32) & _LOW, zero, zero]
    keys = [key & _LOW, (key >> 32) & _LOW]
    for _ in range(10):
        a, b = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57  # products of 64 bits
        words = [
            ((b >> 32) & _LOW) ^ words[1] ^ keys[0],
            b & _LOW,
            ((a >> 32) & _LOW) ^ words[3] ^ keys[1],
            a & _LOW,
        ]
        keys = [(keys[0] + 0x9E3779B9) & _LOW, (keys[1] + 0xBB67AE85) & _LOW]
    return words[0] | words[1] << 32


def _shape_of_philox(counter: Tensor, key: Tensor) -> Tensor:
    return counter.new_empty(torch.broadcast_shapes(counter.shape, key.shape))


_LIBRARY.impl("philox", _philox, "CompositeExplicitAutograd")
# Without it, a trace would run the hundred operators of each draw.
_LIBRARY.impl("philox", _shape_of_philox, "Meta")
_OP: Any = torch.ops.monotile.philox.default


def philox(counter: Tensor, key: Tensor) -> Tensor:
    """64 random bits, int64: the first two words of Philox 4x32-10 (Salmon et al., SC'11) at counter (counter, 0) with key `key`, both int64, broadcast."""
    return _OP(counter, key)
