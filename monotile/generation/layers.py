"""Layers of transformers' static caches, as a decoder keeps them: rows of keys and values for each position, and states of recurrences.

A row that holds a key of a later position is never seen (the mask is causal), and is written again before that position is read. A state
holds all tokens so far: each has to enter it once, in its turn.
"""

import importlib
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
_STATES = {"conv_states": "conv_states", "recurrent_states": "recurrent_states"}


def by_position(layer: Any, capacity: int) -> Any:
    """`layer` with a row for each of `capacity` positions where it has keys and values: what rolls with a window keeps all. Raises
    CaptureError for a layer that is not understood."""
    caches: Any = importlib.import_module("transformers.cache_utils")
    rolling = getattr(caches, "LinearAttentionAndStaticSlidingWindowAttentionLayer", ())
    if isinstance(layer, rolling):
        whole = caches.LinearAttentionAndStaticFullAttentionLayer
        layer = whole(capacity, number_of_states=layer.number_of_states)
    elif isinstance(layer, caches.StaticSlidingWindowLayer):
        layer = caches.StaticLayer(capacity)
    nothing = getattr(
        caches, "DummyLayer", ()
    )  # of its own: it reads another layer's, or is none of attention
    if isinstance(layer, (caches.StaticLayer, nothing)) or is_recurrent(layer):
        return layer
    raise CaptureError(
        f"no static cache of transformers that has a row for each position, or a state: a layer has a {type(layer).__name__}"
    )


def with_own_length(layer: Any) -> Any:
    """`layer`, which gives its length as it is, and not as it will be: some models (Inkling) ask first, and use it after an update."""
    if hasattr(layer, "cumulative_length"):
        asked = layer.get_seq_length

        def length() -> Any:
            found = asked()
            return found.clone() if isinstance(found, Tensor) else found

        layer.get_seq_length = length
    return layer


def is_recurrent(layer: Any) -> bool:
    return hasattr(layer, _STATES["recurrent_states"])


def has_rows(layer: Any) -> bool:
    return any(n in _ROWS for n in tensors_of(layer))


def tensors_of(layer: Any) -> dict[str, Tensor]:
    """The memory of a layer, by a name for each. Nothing where the model has not used it."""
    if not getattr(layer, "is_initialized", True):
        return {}
    single = {n: getattr(layer, a, None) for n, a in (_ROWS | _COUNTS).items()}
    many = {
        f"{n}_{k}": state for n, a in _STATES.items() for k, state in getattr(layer, a, {}).items()
    }
    return {n: x for n, x in (single | many).items() if isinstance(x, Tensor)}


def begin(layer: Any, at: Tensor, padding: Tensor | None) -> None:
    """Makes `layer` as it is before the token at position `at`, a scalar int64, is read: it knows how many it holds, and at the first token
    of a sequence its states are zero. padding: [batch] int64, how many positions in front belong to no token, or None."""
    held = tensors_of(layer)
    for name in _COUNTS:
        if name in held:
            held[name].copy_(at)
    fresh = (at <= (0 if padding is None else padding)).reshape(-1)
    for name in _STATES.values():
        if hasattr(layer, name):
            setattr(layer, name, _States(getattr(layer, name), fresh))


class _States(dict[int, Any]):
    """States of a layer, by number, of which those of the sequences `fresh`, [batch] bool, are made zero when they are asked for: beside the rest
    of their layer, which then is like the others."""

    def __init__(self, states: dict[int, Any], fresh: Tensor) -> None:
        super().__init__(states)
        self._fresh, self._asked = fresh, set[int]()

    def __getitem__(self, k: int) -> Any:
        state = super().__getitem__(k)
        if isinstance(state, Tensor) and k not in self._asked:
            self._asked.add(k)
            where = self._fresh.reshape(-1, *[1] * (state.dim() - 1))
            state.copy_(torch.where(where, torch.zeros_like(state), state))
        return state
