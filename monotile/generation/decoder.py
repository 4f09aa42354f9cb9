"""A causal language model of transformers with a static cache as its buffers, so that `torch.export` takes it."""

import importlib
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from monotile.errors import CaptureError, InputError
from monotile.generation.packed_cache import check_format, packed_layer, tensors_of

# Of transformers: caches with a row of keys and values for each position. A row that holds a key of a later position is never seen (the
# mask is causal), and is written again before that position is read. Recurrent states and rolling windows are not like that.
BY_POSITION = ("StaticLayer",)


class Decoder(nn.Module):
    """`model` with a cache of `capacity` tokens for each of `batch` sequences. vocabulary, device: the model's. cache: how keys and values are
    stored, see `packed_cache`; None: as the model makes them.

    transformers' TorchExportableModuleWithStaticCache with padding. As there, layers with a sliding window keep all positions, and the
    window is in the mask alone. Raises InputError where the capacity does not fit the model, CaptureError for models with other caches.
    """

    def __init__(
        self, model: nn.Module, batch: int, capacity: int, cache: str | None = None
    ) -> None:
        super().__init__()
        check_format(cache)
        config = getattr(model, "config", None)
        longest = getattr(config, "max_position_embeddings", capacity)
        if not 2 <= capacity <= longest:
            raise InputError(
                f"a capacity of {capacity} tokens: {type(model).__name__} takes 2 to {longest}"
            )
        if batch > 1 and "position_ids" not in inspect.signature(model.forward).parameters:
            raise CaptureError(
                f"{type(model).__name__} takes no position_ids: its sequences cannot be padded to one length"
            )
        self.model, self.batch, self.capacity = model, batch, capacity
        self.vocabulary = int(getattr(config, "vocab_size", 2**31))
        self.device = next(model.parameters()).device
        self.cache = _static_cache(model, batch, capacity, cache)
        for i, layer in enumerate(self.cache.layers):
            for name, x in tensors_of(layer).items():
                self.register_buffer(f"{name}_{i}", x, persistent=False)

    def forward(
        self, input_ids: Tensor, cache_position: Tensor, padding: Tensor | None = None
    ) -> Tensor:
        """Logits [batch, n, vocabulary] of tokens that lie one behind the other.

        input_ids: [batch, n] int64. cache_position: [n] int64, where they lie in the cache; what lies behind is as if it were not there.
        padding: [batch] int64, how many positions in front belong to no token of a sequence; None: none. Its tokens are numbered from
        behind it, as transformers does for a mask.
        """
        for layer in self.cache.layers:
            layer.cumulative_length.copy_(cache_position[0])
        given: dict[str, Tensor | None] = {"attention_mask": None}
        if padding is not None:
            slots = torch.arange(self.capacity, device=padding.device)
            given["attention_mask"] = slots >= padding[:, None]
            given["position_ids"] = (cache_position - padding[:, None]).clamp(min=0)
        cache = {"past_key_values": self.cache, "use_cache": True}
        return self.model(input_ids=input_ids, **given, **cache).logits


def _head_shapes(config: Any) -> tuple[int, int]:
    """Heads of keys and their width, where transformers does not say it (before 5.18)."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return getattr(config, "num_key_value_heads", None) or heads, width


def _static_cache(model: nn.Module, batch: int, capacity: int, packed: str | None) -> Any:
    """The cache of transformers with its memory, on the model's device."""
    try:
        caches = importlib.import_module("transformers.cache_utils")
        shapes = importlib.import_module("transformers.configuration_utils")
    except ImportError as error:
        raise CaptureError("a generator needs transformers: pip install transformers") from error
    found: Any = model
    device = next(model.parameters()).device
    try:
        config = found.config.get_text_config()
        cache = caches.StaticCache(config=config, max_cache_len=capacity)
        dummy = getattr(caches, "DummyLayer", ())  # of newer versions
        for i, layer in enumerate(cache.layers):
            if isinstance(layer, caches.StaticSlidingWindowLayer):
                cache.layers[i] = caches.StaticLayer(capacity)
            elif isinstance(layer, dummy):  # reads another layer's
                cache.layers[i] = caches.StaticLayer(0)
        _check_layers(model, cache)
        if packed is not None:
            cache.layers = [packed_layer(layer, packed) for layer in cache.layers]
        heads, width = getattr(shapes, "get_head_shapes", _head_shapes)(config)
        cache.early_initialization(batch, heads, width, found.dtype, device)
    except (AttributeError, AssertionError, KeyError, ValueError, TypeError) as error:
        raise CaptureError(
            f"{type(model).__name__} takes no static cache of transformers: {error}"
        ) from error
    return cache


def _check_layers(model: nn.Module, cache: Any) -> None:
    for layer in cache.layers:
        if type(layer).__name__ not in BY_POSITION:
            raise CaptureError(
                f"{type(model).__name__} takes no static cache of transformers that has a row for each position: a layer has a {type(layer).__name__}"
            )
