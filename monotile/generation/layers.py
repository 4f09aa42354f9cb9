"""Layers of transformers' static caches, as a decoder keeps them: rows of keys and values for each position, and states of recurrences.

A row that holds a key of a later position is never read (the mask is causal), and is overwritten before that position is read. A state
depends on all tokens so far: each has to enter it once, in order.
"""

import importlib
from functools import cache
from typing import Any

import torch
from torch import Tensor

from monotile.errors import CaptureError

_ROWS = {
    "key_cache": "keys",
    "value_cache": "values",
    "key_scales": "key_scales",  # of a `packed_cache`
    "value_scales": "value_scales",
    "indexer_cache": "indexer_keys",
}
_COUNTS = {
    "cumulative_length": "cumulative_length",
    "indexer_length": "indexer_cumulative_length",
}
_STATES = ("conv_states", "recurrent_states")


def by_position(layer: Any, capacity: int) -> Any:
    """`layer` with a row for each of `capacity` positions where it has keys and values: a rolling window keeps all positions. Raises
    CaptureError for an unsupported layer."""
    caches: Any = importlib.import_module("transformers.cache_utils")
    rolling = getattr(caches, "LinearAttentionAndStaticSlidingWindowAttentionLayer", ())
    if isinstance(layer, rolling):
        whole = caches.LinearAttentionAndStaticFullAttentionLayer
        layer = whole(capacity, number_of_states=layer.number_of_states)
    elif isinstance(layer, caches.StaticSlidingWindowLayer):
        layer = caches.StaticLayer(capacity)
    # One without attributes of its own: it reads another layer's, or is no attention layer.
    nothing = getattr(caches, "DummyLayer", ())
    if isinstance(layer, (caches.StaticLayer, nothing)) or is_recurrent(layer):
        return layer
    raise CaptureError(
        f"no static cache of transformers that has a row for each position, or a state: a layer has a {type(layer).__name__}"
    )


def with_own_length(layer: Any) -> Any:
    """`layer`, which reports its length before an update, not after it: some models (Inkling) read the length first, and use it after an
    update."""
    if hasattr(layer, "cumulative_length"):
        layer.__class__ = _with_own_length(type(layer))
    return layer


@cache
def _with_own_length(base: Any) -> type:
    class OwnLength(base):
        def get_seq_length(self, *args: Any, **kwargs: Any) -> Any:
            found = super().get_seq_length(*args, **kwargs)
            return found.clone() if isinstance(found, Tensor) else found

    return OwnLength


def is_recurrent(layer: Any) -> bool:
    return hasattr(layer, "recurrent_states")


def has_rows(layer: Any) -> bool:
    return any(n in _ROWS for n in tensors_of(layer))


def tensors_of(layer: Any) -> dict[str, Tensor]:
    """The memory of a layer, by name. Nothing where the model has not used it."""
    if not getattr(layer, "is_initialized", True):
        return {}
    single = {n: getattr(layer, a, None) for n, a in (_ROWS | _COUNTS).items()}
    many = {f"{n}_{k}": state for n in _STATES for k, state in getattr(layer, n, {}).items()}
    return {n: x for n, x in (single | many).items() if isinstance(x, Tensor)}


def put(layer: Any, name: str, x: Tensor) -> None:
    """Makes `x` the memory that `tensors_of` gives under that name."""
    if name in _ROWS | _COUNTS:
        setattr(layer, (_ROWS | _COUNTS)[name], x)
    else:
        states, _, k = name.rpartition("_")
        getattr(layer, states)[int(k)] = x


def begin(layer: Any, at: Tensor, fresh: Tensor) -> None:
    """Resets `layer` to its state before the token at position `at`, a scalar int64: its length, and zeros for the states of the
    sequences that begin there, `fresh`, [batch] bool or [1] for all."""
    for name, x in tensors_of(layer).items():
        if name in _COUNTS:
            x.copy_(at)
        elif name not in _ROWS:
            where = fresh.reshape(-1, *[1] * (x.dim() - 1))
            x.copy_(torch.where(where, torch.zeros_like(x), x))
