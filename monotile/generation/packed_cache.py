"""Layers of a static cache with keys and values in 8 bits: half the memory, and half of the bytes that attention reads of it for each
token, compared with 16 bits."""

from typing import Any

import torch
from torch import Tensor

from monotile.errors import InputError

FORMATS = ("int8", "fp8")
LARGEST = 448.0  # of float8_e4m3fn
CODES = 127  # of int8, either side of 0


def check_format(name: str | None) -> None:
    """Raises InputError for an unknown format. None: keys and values in the model's dtype."""
    if name is not None and name not in FORMATS:
        raise InputError(
            f"cache={name!r}: there are {', '.join(FORMATS)}, and None for keys and values as the model makes them"
        )


def packed_layer(layer: Any, name: str) -> Any:
    """A new layer of the capacity of `layer` with packed memory, or `layer` itself where it is no StaticLayer of transformers.

    "int8": codes and a scale in the model's dtype for each position and head, the largest magnitude / 127. "fp8": float8_e4m3fn, without
    a scale; larger values become 448.
    """
    if not hasattr(layer, "max_cache_len"):
        return layer
    base: Any = type(layer)

    class PackedLayer(base):
        def lazy_initialization(self, *keys_and_values: Tensor, **states: Tensor) -> None:
            super().lazy_initialization(*keys_and_values, **states)
            if not keys_and_values:
                return
            kind = torch.int8 if name == "int8" else torch.float8_e4m3fn
            if name == "int8":
                self.key_scales = torch.ones_like(self.keys[..., :1])
                self.value_scales = torch.ones_like(self.values[..., :1])
            self.keys, self.values = self.keys.to(kind), self.values.to(kind)

        def update(
            self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any
        ) -> tuple[Tensor, Tensor]:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            count = key_states.shape[-2]
            at = torch.arange(count, device=key_states.device) + self.cumulative_length
            self.cumulative_length.add_(count)
            if name == "fp8":
                return _put_fp8(self.keys, key_states, at), _put_fp8(self.values, value_states, at)
            keys = _put_int8(self.keys, self.key_scales, key_states, at)
            return keys, _put_int8(self.values, self.value_scales, value_states, at)

    return PackedLayer(layer.max_cache_len, number_of_states=getattr(layer, "number_of_states", 1))


def _put_fp8(codes: Tensor, x: Tensor, at: Tensor) -> Tensor:
    """All of `codes`, [..., capacity, width], with `x` at positions `at`, as x's dtype."""
    codes[:, :, at] = x.clamp(-LARGEST, LARGEST).to(codes.dtype)
    return codes.to(x.dtype)


def _put_int8(codes: Tensor, scales: Tensor, x: Tensor, at: Tensor) -> Tensor:
    """The same with a scale, [..., capacity, 1], for each position."""
    least = torch.finfo(x.dtype).tiny
    own = (x.abs().amax(-1, keepdim=True) / CODES).clamp(min=least)
    scales.index_copy_(2, at, own)
    codes.index_copy_(2, at, (x / own).round().clamp(-CODES, CODES).to(torch.int8))
    return codes.to(x.dtype) * scales
