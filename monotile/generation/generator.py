"""`monotile.generator`: a causal language model of transformers whose tokens one kernel writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Unpack, overload

import torch
from torch import Tensor, nn

from monotile.compile import compile_loop
from monotile.config import Options
from monotile.errors import InputError
from monotile.generation.batch import BatchGenerator
from monotile.generation.controls import Sampling, checked, listed, stops_of
from monotile.generation.decoder import Decoder
from monotile.generation.prompt import Reader
from monotile.generation.rows import Ids, arranged
from monotile.generation.step import STOPS, Step, iterated
from monotile.generation.stream import Stream, Writing
from monotile.runtime.module import CompiledModule

CHUNK = 64  # tokens of a prompt at a time


@overload
def generator(
    model: nn.Module,
    capacity: int,
    *,
    batch: Literal[1] = 1,
    chunk: int = CHUNK,
    cache: str | None = None,
    target: str = "auto",
    options: Options = Options(),
) -> "Generator": ...


@overload
def generator(
    model: nn.Module,
    capacity: int,
    *,
    batch: int,
    chunk: int = CHUNK,
    cache: str | None = None,
    target: str = "auto",
    options: Options = Options(),
) -> "Generator | BatchGenerator": ...


def generator(
    model: nn.Module,
    capacity: int,
    *,
    batch: int = 1,
    chunk: int = CHUNK,
    cache: str | None = None,
    target: str = "auto",
    options: Options = Options(),
) -> "Generator | BatchGenerator":
    """`model`, a causal language model of transformers in eval mode, as a kernel that writes tokens, and one that reads a prompt.

    capacity: tokens that prompt and answer may have together; the cache is allocated for them.
    batch: sequences at most; for more than one there is a `BatchGenerator`.
    chunk: how many tokens of a prompt are read at a time; 1: the kernel that writes reads them too, and is the only one.
    cache: how keys and values are stored: "int8" with a scale for each position and head, "fp8" (float8_e4m3fn), or None, as the model makes them.
    target, options: as `monotile.compile` takes them.
    Raises InputError where the capacity does not fit the model, or there is no such cache, CaptureError where the model takes no cache, and else as
    `monotile.compile` does.
    """
    if batch < 1:
        raise InputError(f"a batch of {batch}: give 1 at least")
    decoder = Decoder(model, batch, capacity, cache)
    if batch != 1:
        return BatchGenerator(decoder, chunk, target, options)
    return Generator(decoder, chunk, target, options)


@dataclass(frozen=True, slots=True)
class _Wish:
    """What `Generator.generate` and `stream` are asked for; mask: of attention. more: tokens at most. ends: ids that end it."""

    ids: Ids
    mask: Tensor | None
    more: int
    seed: int
    ends: int | Sequence[int] | None
    follow: bool
    sampling: Sampling


class Generator:
    """What `generator` gives. One sequence at a time: all calls use one cache.

    kernel: the CompiledModule that writes. reader: reads prompts, if `chunk` is not 1. decoder: the model with its cache.
    capacity: in tokens.
    """

    def __init__(self, decoder: Decoder, chunk: int, target: str, options: Options) -> None:
        self.decoder = decoder
        self.capacity = capacity = decoder.capacity
        self._length = 0
        self._writing: Writing | None = None
        self._stops, self._device = stops_of(decoder.model), decoder.device
        self._ids = torch.zeros(capacity, dtype=torch.int64, device=self._device)
        self._unwatched = (torch.zeros_like(self._ids), torch.zeros_like(self._ids[0]))
        step, call = Step(self.decoder, capacity).eval(), self.call(self._ids[:1], 1)
        how = iterated(capacity)
        self.kernel: CompiledModule = compile_loop(step, call, how, target=target, options=options)
        self.reader = Reader(self.decoder, chunk, (self._ids,), target, options) if chunk > 1 else None  # fmt: skip

    def generate(
        self,
        ids: Ids,
        max_new_tokens: int = 20,
        *,
        attention_mask: Tensor | None = None,
        seed: int = 0,
        eos_token_id: int | Sequence[int] | None = None,
        follow: bool = False,
        **sampling: Unpack[Sampling],
    ) -> Tensor:
        """Prompt and answer, [1, n] int64, up to `max_new_tokens` or an id that ends it: one launch, and before it one that reads a prompt of
        more than a few tokens.

        ids: [1, n] int64, n of 1 or more, or a list of one tensor [n]. attention_mask: [1, n], whose zeros are padding on the left, which is
        left out. seed: of the counter-based random numbers by which tokens are drawn; the same on every target. eos_token_id: instead of the model's own. follow: the last sequence goes on: its keys and values are still in the cache, and
        `ids` come after its last token. sampling: see `Sampling`. Raises InputError for what does not fit.
        """
        call, _ = self._asked(
            _Wish(ids, attention_mask, max_new_tokens, seed, eos_token_id, follow, sampling)
        )
        self._ended(self.kernel(*call))
        return self._ids[None, : self._length + 1].clone()

    def stream(
        self,
        ids: Ids,
        max_new_tokens: int = 20,
        *,
        attention_mask: Tensor | None = None,
        seed: int = 0,
        eos_token_id: int | Sequence[int] | None = None,
        follow: bool = False,
        **sampling: Unpack[Sampling],
    ) -> Stream:
        """The tokens of the answer one by one, each while the one kernel writes on. Takes and raises what `generate` does.

        Who leaves early, or calls the generator again, stops the kernel: see `Stream`. What is written until then is the last sequence.
        """
        call, given = self._asked(
            _Wish(ids, attention_mask, max_new_tokens, seed, eos_token_id, follow, sampling)
        )
        self._writing = Writing(self.kernel, call[:-2], self.capacity, self._ended)
        return Stream(self._writing, given)

    @property
    def length(self) -> int:
        """Tokens of the last sequence whose keys and values the cache holds."""
        if self._writing is not None and self._writing.told:
            self._writing.close()
        return self._length

    def _asked(self, wish: "_Wish") -> tuple[tuple[Tensor, ...], int]:
        """The kernel's arguments, and how many tokens are given, once a stream that is open has ended and all but the last few tokens of the
        prompt are read."""
        if self._writing is not None:
            self._writing.close()
        prompt = self._prompt(wish.ids, wish.mask, wish.more, wish.follow)
        stops = self._stops if wish.ends is None else listed(wish.ends)
        begun, given = self._length if wish.follow else 0, prompt.shape[0]
        end = self.reader.end(begun, given) if self.reader else begun
        call = self.call(prompt, wish.more, stops, end, wish.seed, **wish.sampling)
        if self.reader:
            self.reader.read(call[0], begun, end)
        return call, given

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
        top_k, controls = checked(sampling)
        most = prompt.shape[0] + more
        ids = torch.cat((prompt, self._ids[prompt.shape[0] :]))
        numbers = [prompt.shape[0], most, top_k, seed]
        ends = [*stops, *[-1] * (STOPS - len(stops))]
        given = (begun, begun + 1 < most, numbers, ends, controls)
        return (ids, *(torch.tensor(x, device=self._device) for x in given), *self._unwatched)

    def _prompt(self, ids: Ids, mask: Tensor | None, more: int, follow: bool) -> Tensor:
        """All ids before the answer."""
        (new,) = arranged(ids, mask, 1, self.decoder.vocabulary).sequences()
        if more < 1:
            raise InputError("an answer has a token at least")
        new = new.to(self._device)
        prompt = torch.cat((self._ids[: self._length + 1], new)) if follow else new
        if prompt.shape[0] + more > self.capacity:
            raise InputError(
                f"{prompt.shape[0]} tokens and {more} more are over the capacity of {self.capacity}: make a generator with a larger one"
            )
        return prompt
