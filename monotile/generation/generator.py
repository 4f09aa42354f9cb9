"""`monotile.generator`: a causal language model of transformers whose tokens one kernel writes."""

import importlib
from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict, Unpack

import torch
from torch import Tensor, nn

from monotile.compile import compile_loop
from monotile.config import Options
from monotile.errors import CaptureError, InputError
from monotile.generation.sampling import Controls
from monotile.generation.step import STOPS, Step, iterated
from monotile.generation.stream import Stream, Writing
from monotile.runtime.module import CompiledModule


class Sampling(TypedDict):
    """How a token is chosen, in transformers' words and order. temperature: 0 (the default) takes the likeliest; else tokens are drawn. top_k: 0
    for all. The others leave out nothing by default."""

    temperature: NotRequired[float]
    top_k: NotRequired[int]
    top_p: NotRequired[float]
    min_p: NotRequired[float]
    repetition_penalty: NotRequired[float]


# By name: the value that changes nothing, the least, the greatest.
RANGES: dict[str, tuple[float, float, float]] = {
    "temperature": (0.0, 0.0, 1e6),
    "top_k": (0, 0, 2**31),
    "top_p": (1.0, 1e-6, 1.0),
    "min_p": (0.0, 0.0, 1.0),
    "repetition_penalty": (1.0, 1e-3, 1e3),
}


def generator(
    model: nn.Module, capacity: int, *, target: str = "auto", options: Options = Options()
) -> "Generator":
    """`model`, a causal language model of transformers in eval mode, as a kernel that reads a prompt and writes tokens.

    capacity: tokens that prompt and answer may have together; the cache is allocated for them.
    target, options: as `monotile.compile` takes them.
    Raises InputError where the capacity does not fit the model, CaptureError where the model takes no cache, and else as
    `monotile.compile` does.
    """
    return Generator(model, capacity, target, options)


class Generator:
    """What `generator` gives. One sequence at a time: all calls use one cache.

    kernel: the CompiledModule. decoder: the model with its cache. capacity: in tokens.
    """

    def __init__(self, model: nn.Module, capacity: int, target: str, options: Options) -> None:
        config = getattr(model, "config", None)
        longest = getattr(config, "max_position_embeddings", capacity)
        if not 2 <= capacity <= longest:
            raise InputError(
                f"a capacity of {capacity} tokens: {type(model).__name__} takes 2 to {longest}"
            )
        self.capacity, self._length = capacity, 0
        self._writing: Writing | None = None
        self._vocabulary = int(getattr(config, "vocab_size", 2**31))
        self._stops = _stops(model)
        self._device = next(model.parameters()).device
        self._ids = torch.zeros(capacity, dtype=torch.int64, device=self._device)
        self._unwatched = (torch.zeros_like(self._ids), torch.zeros_like(self._ids[0]))
        self.decoder = _with_cache(model, capacity, self._device)
        step, call = Step(self.decoder, capacity).eval(), self.call(self._ids[:1], 1)
        how = iterated(capacity)
        self.kernel: CompiledModule = compile_loop(step, call, how, target=target, options=options)

    def generate(
        self,
        ids: Tensor,
        max_new_tokens: int = 20,
        *,
        seed: int = 0,
        eos_token_id: int | Sequence[int] | None = None,
        follow: bool = False,
        **sampling: Unpack[Sampling],
    ) -> Tensor:
        """Prompt and answer, [1, n] int64, up to `max_new_tokens` or an id that ends it, in one launch.

        ids: [1, n] int64, n of 1 or more. seed: of the counter-based random numbers by which tokens are drawn; the same on every target.
        eos_token_id: instead of the model's own. follow: the last sequence goes on: its keys and values are still in the cache, and
        `ids` come after its last token. sampling: see `Sampling`. Raises InputError for what does not fit.
        """
        call, _ = self._asked(ids, max_new_tokens, seed, eos_token_id, follow, sampling)
        self._ended(self.kernel(*call))
        return self._ids[None, : self._length + 1].clone()

    def stream(
        self,
        ids: Tensor,
        max_new_tokens: int = 20,
        *,
        seed: int = 0,
        eos_token_id: int | Sequence[int] | None = None,
        follow: bool = False,
        **sampling: Unpack[Sampling],
    ) -> Stream:
        """The tokens of the answer one by one, each while the one kernel writes on. Takes and raises what `generate` does.

        Who leaves early, or calls the generator again, stops the kernel: see `Stream`. What is written until then is the last sequence.
        """
        call, given = self._asked(ids, max_new_tokens, seed, eos_token_id, follow, sampling)
        self._writing = Writing(self.kernel, call[:-2], self.capacity, self._ended)
        return Stream(self._writing, given)

    @property
    def length(self) -> int:
        """Tokens of the last sequence whose keys and values the cache holds."""
        if self._writing is not None and self._writing.told:
            self._writing.close()
        return self._length

    def _asked(
        self,
        ids: Tensor,
        more: int,
        seed: int,
        ends: int | Sequence[int] | None,
        follow: bool,
        sampling: Sampling,
    ) -> tuple[tuple[Tensor, ...], int]:
        """The kernel's arguments, and how many tokens are given, once a stream that is open has ended."""
        if self._writing is not None:
            self._writing.close()
        prompt = self._prompt(ids, more, follow)
        stops = self._stops if ends is None else _listed(ends)
        call = self.call(prompt, more, stops, self._length if follow else 0, seed, **sampling)
        return call, prompt.shape[0]

    def _ended(self, results: tuple[Tensor, ...]) -> None:
        self._ids, last, _ = results
        self._length, self._writing = int(last), None

    def call(
        self,
        prompt: Tensor,
        more: int,
        stops: Sequence[int] = (),
        begun: int = 0,
        seed: int = 0,
        **sampling: Unpack[Sampling],
    ) -> tuple[Tensor, ...]:
        """What the kernel is called with. begun: how many of the prompt's tokens the cache holds already."""
        chosen = _checked(sampling)
        most = prompt.shape[0] + more
        ids = torch.cat((prompt, self._ids[prompt.shape[0] :]))
        numbers = [prompt.shape[0], most, int(chosen["top_k"]), seed]
        controls = [0.0] * Controls.COUNT
        controls[Controls.TEMPERATURE], controls[Controls.TOP_P] = chosen["temperature"], chosen["top_p"]  # fmt: skip
        controls[Controls.MIN_P], controls[Controls.PENALTY] = chosen["min_p"], chosen["repetition_penalty"]  # fmt: skip
        ends = [*stops, *[-1] * (STOPS - len(stops))]
        given = (begun, begun + 1 < most, numbers, ends, controls)
        return (ids, *(torch.tensor(x, device=self._device) for x in given), *self._unwatched)

    def _prompt(self, ids: Tensor, more: int, follow: bool) -> Tensor:
        """All ids before the answer."""
        if ids.dim() != 2 or ids.shape[0] != 1 or ids.dtype is not torch.int64:
            raise InputError(
                f"ids are {ids.dtype} of shape {tuple(ids.shape)}: give one sequence, int64 of shape [1, n]"
            )
        if not ids.shape[1] or more < 1:
            raise InputError("a prompt has a token at least, and an answer too")
        low, high = int(ids.min()), int(ids.max())
        if not 0 <= low <= high < self._vocabulary:
            raise InputError(f"ids from {low} to {high}: the vocabulary has {self._vocabulary}")
        new = ids[0].to(self._device)
        prompt = torch.cat((self._ids[: self._length + 1], new)) if follow else new
        if prompt.shape[0] + more > self.capacity:
            raise InputError(
                f"{prompt.shape[0]} tokens and {more} more are over the capacity of {self.capacity}: make a generator with a larger one"
            )
        return prompt


def _checked(sampling: Sampling) -> dict[str, float]:
    """All controls. Raises InputError for one that is unknown or out of its range."""
    given: dict[str, Any] = dict(sampling)
    if unknown := given.keys() - RANGES.keys():
        raise InputError(f"unknown {', '.join(sorted(unknown))}: there are {', '.join(RANGES)}")
    out: dict[str, float] = {}
    for name, (default, low, high) in RANGES.items():
        out[name] = given.get(name, default)
        if not low <= out[name] <= high:
            raise InputError(f"{name} is {out[name]}: it has to be from {low:g} to {high:g}")
    return out


def _with_cache(model: nn.Module, capacity: int, device: torch.device) -> nn.Module:
    """The model with a static cache as its buffers."""
    try:
        library = importlib.import_module("transformers")
        exportable = importlib.import_module("transformers.integrations.executorch")
    except ImportError as error:
        raise CaptureError("a generator needs transformers: pip install transformers") from error
    own: Any = getattr(model, "generation_config", None)
    sizes = {"batch_size": 1, "max_cache_len": capacity}
    try:
        model.generation_config = library.GenerationConfig(
            use_cache=True, cache_implementation="static", cache_config=sizes
        )
        return exportable.TorchExportableModuleWithStaticCache(model, device=device)
    except (AttributeError, AssertionError, ValueError, TypeError) as error:
        raise CaptureError(
            f"{type(model).__name__} takes no static cache of transformers: {error}"
        ) from error
    finally:
        model.generation_config = own


def _stops(model: nn.Module) -> tuple[int, ...]:
    """The ids that end the model's own sequences."""
    for config in (getattr(model, "generation_config", None), getattr(model, "config", None)):
        found: Any = getattr(config, "eos_token_id", None)
        if found is not None:
            return _listed(found)
    return ()


def _listed(ids: int | Sequence[int]) -> tuple[int, ...]:
    found = (ids,) if isinstance(ids, int) else tuple(ids)
    if len(found) > STOPS:
        raise InputError(f"{len(found)} ids that end a sequence: at most {STOPS}")
    return found
