"""`monotile.generator`: a causal language model of transformers whose tokens one kernel writes."""

from collections.abc import Sequence
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
from monotile.runtime.module import CompiledModule

CHUNK = 64  # tokens of a prompt at a time


@overload
def generator(
    model: nn.Module,
    capacity: int,
    *,
    batch: Literal[1] = 1,
    chunk: int = CHUNK,
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
    target: str = "auto",
    options: Options = Options(),
) -> "Generator | BatchGenerator": ...


def generator(
    model: nn.Module,
    capacity: int,
    *,
    batch: int = 1,
    chunk: int = CHUNK,
    target: str = "auto",
    options: Options = Options(),
) -> "Generator | BatchGenerator":
    """`model`, a causal language model of transformers in eval mode, as a kernel that writes tokens, and one that reads a prompt.

    capacity: tokens that prompt and answer may have together; the cache is allocated for them.
    batch: sequences at most; for more than one there is a `BatchGenerator`.
    chunk: how many tokens of a prompt are read at a time; 1: the kernel that writes reads them too, and is the only one.
    target, options: as `monotile.compile` takes them.
    Raises InputError where the capacity does not fit the model, CaptureError where the model takes no cache, and else as
    `monotile.compile` does.
    """
    if batch != 1:
        return BatchGenerator(model, batch, capacity, chunk, target, options)
    return Generator(model, capacity, chunk, target, options)


class Generator:
    """What `generator` gives. One sequence at a time: all calls use one cache.

    kernel: the CompiledModule that writes. reader: reads prompts, if `chunk` is not 1. decoder: the model with its cache.
    capacity: in tokens. length: tokens of the sequence whose keys and values the cache holds.
    """

    def __init__(self, model: nn.Module, capacity: int, chunk: int, target: str, options: Options) -> None:  # fmt: skip
        self.decoder = Decoder(model, 1, capacity)
        self.capacity, self.length = capacity, 0
        self._stops, self._device = stops_of(model), self.decoder.device
        self._ids = torch.zeros(capacity, dtype=torch.int64, device=self._device)
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
        prompt = self._prompt(ids, attention_mask, max_new_tokens, follow)
        stops = self._stops if eos_token_id is None else listed(eos_token_id)
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
        top_k, controls = checked(sampling)
        most = prompt.shape[0] + more
        ids = torch.cat((prompt, self._ids[prompt.shape[0] :]))
        numbers = [prompt.shape[0], most, top_k, seed]
        ends = [*stops, *[-1] * (STOPS - len(stops))]
        given = (begun, begun + 1 < most, numbers, ends, controls)
        return (ids, *(torch.tensor(x, device=self._device) for x in given))

    def _prompt(self, ids: Ids, mask: Tensor | None, more: int, follow: bool) -> Tensor:
        """All ids before the answer."""
        (new,) = arranged(ids, mask, 1, self.decoder.vocabulary).sequences()
        if more < 1:
            raise InputError("an answer has a token at least")
        new = new.to(self._device)
        prompt = torch.cat((self._ids[: self.length + 1], new)) if follow else new
        if prompt.shape[0] + more > self.capacity:
            raise InputError(
                f"{prompt.shape[0]} tokens and {more} more are over the capacity of {self.capacity}: make a generator with a larger one"
            )
        return prompt
