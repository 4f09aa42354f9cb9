"""`monotile.generator`: a causal language model of transformers whose tokens one kernel writes."""

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict, Unpack

import torch
from torch import Tensor, nn

from monotile.compile import compile_loop
from monotile.config import Options
from monotile.errors import InputError
from monotile.generation.decoder import Decoder
from monotile.generation.prompt import Reader
from monotile.generation.sampling import Controls
from monotile.generation.step import STOPS, Step, iterated
from monotile.runtime.module import CompiledModule


class Sampling(TypedDict):
    """How a token is chosen, in transformers' words and order. temperature: 0 (the default) takes the likeliest; else tokens are drawn. top_k: 0
    for all. The others leave out nothing by default."""

    temperature: NotRequired[float]
    top_k: NotRequired[int]
    top_p: NotRequired[float]
    min_p: NotRequired[float]
    repetition_penalty: NotRequired[float]


CHUNK = 64  # tokens of a prompt at a time

# By name: the value that changes nothing, the least, the greatest.
RANGES: dict[str, tuple[float, float, float]] = {
    "temperature": (0.0, 0.0, 1e6),
    "top_k": (0, 0, 2**31),
    "top_p": (1.0, 1e-6, 1.0),
    "min_p": (0.0, 0.0, 1.0),
    "repetition_penalty": (1.0, 1e-3, 1e3),
}


def generator(
    model: nn.Module,
    capacity: int,
    *,
    chunk: int = CHUNK,
    target: str = "auto",
    options: Options = Options(),
) -> "Generator":
    """`model`, a causal language model of transformers in eval mode, as a kernel that writes tokens, and one that reads a prompt.

    capacity: tokens that prompt and answer may have together; the cache is allocated for them.
    chunk: how many tokens of a prompt are read at a time; 1: the kernel that writes reads them too, and is the only one.
    target, options: as `monotile.compile` takes them.
    Raises InputError where the capacity does not fit the model, CaptureError where the model takes no cache, and else as
    `monotile.compile` does.
    """
    return Generator(model, capacity, chunk, target, options)


class Generator:
    """What `generator` gives. One sequence at a time: all calls use one cache.

    kernel: the CompiledModule that writes. reader: the one that reads prompts, if there is one. decoder: the model with its cache. capacity: in tokens. length: tokens of the sequence whose keys and values
    the cache holds.
    """

    def __init__(self, model: nn.Module, capacity: int, chunk: int, target: str, options: Options) -> None:  # fmt: skip
        config = getattr(model, "config", None)
        longest = getattr(config, "max_position_embeddings", capacity)
        if not 2 <= capacity <= longest:
            raise InputError(
                f"a capacity of {capacity} tokens: {type(model).__name__} takes 2 to {longest}"
            )
        self.capacity, self.length = capacity, 0
        self._vocabulary = int(getattr(config, "vocab_size", 2**31))
        self._stops = _stops(model)
        self._device = next(model.parameters()).device
        self._ids = torch.zeros(capacity, dtype=torch.int64, device=self._device)
        self.decoder = Decoder(model, 1, capacity, self._device)
        step, call = Step(self.decoder, capacity).eval(), self.call(self._ids[:1], 1)
        how = iterated(capacity)
        self.kernel: CompiledModule = compile_loop(step, call, how, target=target, options=options)
        self.reader = Reader(self.decoder, chunk, (self._ids,), target, options) if chunk > 1 else None  # fmt: skip

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
        """Prompt and answer, [1, n] int64, up to `max_new_tokens` or an id that ends it, in one launch, and one for a prompt of some length.

        ids: [1, n] int64, n of 1 or more. seed: of the counter-based random numbers by which tokens are drawn; the same on every target.
        eos_token_id: instead of the model's own. follow: the last sequence goes on: its keys and values are still in the cache, and
        `ids` come after its last token. sampling: see `Sampling`. Raises InputError for what does not fit.
        """
        prompt = self._prompt(ids, max_new_tokens, follow)
        stops = self._stops if eos_token_id is None else _listed(eos_token_id)
        begun, given = self.length if follow else 0, prompt.shape[0]
        end = self.reader.end(begun, given) if self.reader else begun
        call = self.call(prompt, max_new_tokens, stops, end, seed, **sampling)
        if self.reader:
            self.reader.read(call[0], begun, end)
        self._ids, last, _ = self.kernel(*call)
        self.length = int(last)
        return self._ids[None, : self.length + 1].clone()

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
        return (ids, *(torch.tensor(x, device=self._device) for x in given))

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
        prompt = torch.cat((self._ids[: self.length + 1], new)) if follow else new
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
