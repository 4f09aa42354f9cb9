"""A causal language model of transformers with a static cache as its buffers, so that `torch.export` takes it."""

import importlib
import inspect
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from monotile.errors import CaptureError, InputError
from monotile.generation.layers import (
    begin,
    by_position,
    has_rows,
    is_recurrent,
    tensors_of,
    with_own_length,
)
from monotile.generation.packed_cache import check_format, packed_layer
from monotile.generation.probe import (
    FAULTS,
    check_steps,
    logits_of,
    numbers_asked,
    own_tensors,
    takes_positions,
)

# What causal models call their cache; the latter are those of Mamba, from transformers 5.24 on the last.
_CACHES = ("past_key_values", "cache_params", "cache")


class Decoder(nn.Module):
    """`model` with a cache of `capacity` tokens for each of `batch` sequences. vocabulary, device: the model's. positions: whether the
    model takes the positions of its tokens. cache: how keys and values are stored, see `packed_cache`; None: in the model's dtype.
    recurrent: whether there are states, which each token has to enter once, in order. attends: whether there are keys and values.
    masked: whether the model is given a mask of ones, because it makes one as long as the tokens read, a number that it reads from a
    tensor.

    transformers' TorchExportableModuleWithStaticCache with padding and states. As there, layers with a sliding window keep all
    positions, and the window is in the mask alone. Raises InputError where the capacity does not fit the model, CaptureError for models
    with other caches.
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
        self.model, self.batch, self.capacity = model, batch, capacity
        self.vocabulary = int(getattr(config, "vocab_size", 2**31))
        self.device = next(model.parameters()).device
        self.cache = _static_cache(model, capacity, cache)
        self.attends = self.positions = self.masked = False
        with torch.no_grad(), _refusing(model):
            self._try(exact=cache is None)
        if batch > 1 and self.attends and not self.positions:
            raise CaptureError(
                f"{type(model).__name__} takes no position_ids that count from 0: its sequences cannot be padded to one length"
            )
        self.recurrent = any(is_recurrent(layer) for layer in self.cache.layers)
        for i, layer in enumerate(self.cache.layers):
            for name, x in tensors_of(layer).items():
                self.register_buffer(f"{name}_{i}", x, persistent=False)

    def _try(self, exact: bool) -> None:
        """Reads two tokens: the model allocates the cache, and shows which arguments it takes. Raises one of `FAULTS`, or CaptureError,
        where that fails. exact: whether the cache keeps the exact values."""
        whole = logits_of(self.model, 2)
        self.positions = takes_positions(self.model, whole)
        found: list[tuple[int, bool, Tensor]] = []
        faults = list[Exception]()
        for self.masked in (False, True):
            try:
                asked, steps = self._steps()
            except FAULTS as fault:
                faults.append(fault)
                continue
            found.append((asked, self.masked, steps))
            if not asked:
                break
        if not found:
            raise faults[0]
        _, self.masked, steps = min(found, key=lambda f: f[:2])
        self.attends = any(has_rows(layer) for layer in self.cache.layers)
        if exact:
            check_steps(self.model, steps[:1], whole)

    def _steps(self) -> tuple[int, Tensor]:
        """How often the model reads a number from a tensor, and the logits of two tokens, [batch, 2, vocabulary]."""
        first = torch.zeros(self.batch, 1, dtype=torch.int64, device=self.device)
        steps = list[Tensor]()

        def read(at: int) -> None:
            steps.append(self(first + at, torch.tensor([at], device=self.device)))

        read(0)
        if not any(tensors_of(layer) for layer in self.cache.layers):
            raise ValueError("it does not use the one that it is given")
        before = own_tensors(self.model)
        asked = numbers_asked(lambda: read(1))
        changed = [n for n, at in own_tensors(self.model).items() if before.get(n) != at]
        if changed:
            raise ValueError(f"it keeps a state of its own, {changed[0]}")
        if any(x.shape[1] != 1 for x in steps):
            raise ValueError("a token has logits for several")
        return asked, torch.cat(steps, 1)

    def forward(
        self, input_ids: Tensor, cache_position: Tensor, padding: Tensor | None = None
    ) -> Tensor:
        """Logits [batch, n, vocabulary] of consecutive tokens.

        input_ids: [batch, n] int64. cache_position: [n] int64, their positions in the cache; later positions are ignored. padding:
        [batch] int64, the number of leading positions that belong to no token of a sequence; None: none. Tokens are numbered from there,
        as transformers does for a mask.
        """
        at = cache_position[0]
        fresh = (at <= (0 if padding is None else padding)).reshape(-1)
        for layer in self.cache.layers:
            begin(layer, at, fresh)
        given: dict[str, Tensor | None] = {"attention_mask": None}
        if self.masked:
            shape = (self.batch, self.capacity)
            given["attention_mask"] = torch.ones(shape, dtype=torch.int64, device=self.device)
        if self.positions:
            given["position_ids"] = cache_position[None]
        if padding is not None and self.attends:
            slots = torch.arange(self.capacity, device=padding.device)
            given["attention_mask"] = slots >= padding[:, None]
            given["position_ids"] = (cache_position - padding[:, None]).clamp(min=0)
        return self.model(input_ids=input_ids, **given, **_given(self.model, self.cache)).logits


def _given(model: nn.Module, cache: Any) -> dict[str, Any]:
    """The arguments that make `model` read and write `cache`."""
    taken = inspect.signature(model.forward).parameters
    name = next((n for n in _CACHES if n in taken), _CACHES[0])
    return {name: cache, "use_cache": True}


def _static_cache(model: nn.Module, capacity: int, packed: str | None) -> Any:
    """The static cache of transformers, without memory: the model allocates it when it reads a token."""
    try:
        caches = importlib.import_module("transformers.cache_utils")
    except ImportError as error:
        raise CaptureError("a generator needs transformers: pip install transformers") from error
    found: Any = model
    with _refusing(model):
        cache = caches.StaticCache(config=found.config.get_text_config(), max_cache_len=capacity)
        cache.layers = [by_position(layer, capacity) for layer in cache.layers]
        if packed is not None:
            cache.layers = [packed_layer(layer, packed) for layer in cache.layers]
        cache.layers = [with_own_length(layer) for layer in cache.layers]
    return cache


@contextmanager
def _refusing(model: nn.Module) -> Generator[None, None, None]:
    """Within, any error is raised as the model's."""
    try:
        yield
    except FAULTS as error:
        raise CaptureError(
            f"{type(model).__name__} takes no static cache of transformers: {error}"
        ) from error
