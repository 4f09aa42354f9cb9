"""Corrects the shape that PyTorch's tracer gives to the final states of nn.LSTM.

The decomposition by which PyTorch 2.11 and earlier versions trace an LSTM squeezes the batch of a layer's final states instead of the axis
before it: with more than one sequence the states are [layers, 1, batch, width], which another nn.LSTM refuses.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._decomp import decompositions

_Pair = tuple[torch.Tensor, torch.Tensor]


@contextmanager
def states_as_given() -> Generator[None, None, None]:
    """Within, the final states of a traced LSTM have the shape of its initial ones."""
    layer: Callable[..., tuple[torch.Tensor, _Pair]] = decompositions.one_layer_lstm

    def shaped(
        inp: torch.Tensor, hidden: _Pair, *rest: Any, **more: Any
    ) -> tuple[torch.Tensor, _Pair]:
        out, (h, c) = layer(inp, hidden, *rest, **more)
        return out, (h.reshape(hidden[0].shape), c.reshape(hidden[1].shape))

    with patch.object(decompositions, "one_layer_lstm", shaped):
        yield
