"""The shapes of the results of nn.LSTM, nn.GRU and nn.RNN, while a model is traced.

PyTorch's tracer finds them by running every step of every layer on tensors without data: 100 steps of ten layers take 9 s. One step says as
much. And the decomposition by which PyTorch 2.11 and earlier versions do it squeezes the batch of an LSTM's final states instead of the axis
before it: with more than one sequence the states are [layers, 1, batch, width], which another nn.LSTM refuses.
"""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._decomp import decompositions
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils import _pytree as pytree

Layer = Callable[..., tuple[torch.Tensor, Any]]  # of the input, the first states and more


@contextmanager
def shapes_of_recurrent_layers() -> Generator[None, None, None]:
    """Within, a traced layer runs one step, and its final states have the shapes of its initial ones."""
    with ExitStack() as stack:
        for name in ("one_layer_lstm", "one_layer_rnn"):
            layer: Layer = getattr(decompositions, name)
            stack.enter_context(patch.object(decompositions, name, _shaped(layer)))
        yield


def _shaped(layer: Layer) -> Layer:
    def shaped(x: torch.Tensor, first: Any, *rest: Any, **more: Any) -> tuple[torch.Tensor, Any]:
        without_data = isinstance(x, FakeTensor) and get_proxy_mode() is None
        out, last = layer(x[:1] if without_data else x, first, *rest, **more)
        if without_data:
            out = out.new_empty((x.shape[0], *out.shape[1:]))
        return out, pytree.tree_map(lambda a, b: a.reshape(b.shape), last, first)

    return shaped
