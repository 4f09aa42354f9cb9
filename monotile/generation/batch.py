"""Batched generation: several sequences of different lengths, whose tokens one kernel generates until each has ended."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from monotile.compile import compile_loop
from monotile.config import Options
from monotile.errors import InputError
from monotile.generation.controls import Sampling, checked, listed, pad_of, stops_of
from monotile.generation.decoder import Decoder
from monotile.generation.prompt import Reader
from monotile.generation.rows import Ids, Rows, arranged, padded
from monotile.generation.sampling import choose
from monotile.generation.step import STOPS, next_position
from monotile.runtime.module import CompiledModule
from monotile.transform.iterate import Iterate


class BatchStep(nn.Module):
    """A decoder's step for one token of each sequence."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self, ids: Tensor, at: Tensor, goes_on: Tensor, ended: Tensor, padding: Tensor, numbers: Tensor, controls: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """ids: [batch, capacity] int64, padded on the left to one length. at: scalar int64, the position of the tokens to read. goes_on:
        scalar bool. ended: [batch] bool. padding: [batch] int64, see `Decoder`. numbers: [5 + STOPS] int64: the number of given ids,
        padding included, the maximum number in the end, `top_k` and `seed` of `sampling.choose`, the id that fills up ended sequences,
        and the ids that end a sequence, padded with -1. controls: `sampling.Controls`.

        Gives the first four for the next step.
        """
        del goes_on  # of the loop
        capacity = self.decoder.capacity
        tokens = ids.index_select(1, at.reshape(1))
        logits = self.decoder(tokens, at.reshape(1), padding)
        after = next_position(at, capacity)
        slots = torch.arange(capacity, device=ids.device)
        seen = torch.where((slots <= at) & (slots >= padding[:, None]), ids, tokens)
        given, most, top_k, seed, pad = (x.clone() for x in numbers[:5].unbind())  # no views, for torch.cond  # fmt: skip
        chosen = choose(logits.float()[:, 0], seen, controls, top_k, seed, after)
        known = ids.index_select(1, after.reshape(1))[:, 0]
        written = torch.where(after < given, known, torch.where(ended, pad, chosen))
        ids = ids.index_copy(1, after.reshape(1), written[:, None])
        ended = ended | ((after >= given) & (written[:, None] == numbers[5:]).any(-1))
        return ids, after, (after + 1 < most) & ~ended.all(), ended


class BatchGenerator:
    """The result of `generator` for several sequences. All calls use one cache.

    kernel: the CompiledModule that generates tokens. reader: reads prompts, if `chunk` is not 1. decoder: the model with its cache.
    batch: maximum number of sequences. capacity: tokens of each, its padding included.
    """

    def __init__(self, decoder: Decoder, chunk: int, target: str, options: Options) -> None:
        self.decoder = decoder
        self.batch, self.capacity = decoder.batch, decoder.capacity
        self._stops, self._pad = stops_of(decoder.model), pad_of(decoder.model)
        self._sequences: list[Tensor] = []
        call = self.call(Rows(torch.zeros(1, 1, dtype=torch.int64), (0,)), 1)
        how = Iterate(inputs=(0, 1, 2, 3), predicate=2, bound=self.capacity, unread=False)
        self.kernel: CompiledModule = compile_loop(
            BatchStep(self.decoder).eval(), call, how, target=target, options=options
        )
        self.reader = Reader(self.decoder, chunk, (call[0], call[4]), target, options) if chunk > 1 else None  # fmt: skip

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
        """Prompts and answers, [sequences, n] int64: each up to `max_new_tokens` or an id that ends it, filled up with the model's
        pad_token_id (or the first id that ends a sequence) until all have ended. Launches as in `Generator.generate`.

        ids: [sequences, n] int64 with the `attention_mask` of a tokenizer that pads on the left, or a list of prompts, each [n] int64.
        Without a mask all ids are tokens. There may be fewer sequences than the batch. seed: of the random numbers, which differ between
        sequences. eos_token_id: instead of the model's own. follow: the last sequences are continued, each with its row of `ids`; they
        are read again. sampling: see `Sampling`, the same for all. Raises InputError for invalid arguments.
        """
        stops = self._stops if eos_token_id is None else listed(eos_token_id)
        rows = self._rows(ids, attention_mask, max_new_tokens, follow)
        count, given = rows.ids.shape
        end = self.reader.end(0, given) if self.reader else 0
        call = self.call(rows, max_new_tokens, stops, end, seed, **sampling)
        if self.reader:
            self.reader.read(call[0], 0, end, call[4])
        found, last, _, _ = self.kernel(*call)
        out = found[:count, : int(last) + 1].clone()
        self._sequences = [_ended(row[k:], given - k, stops) for row, k in zip(out, rows.padding, strict=True)]  # fmt: skip
        return out

    def call(
        self,
        rows: Rows,
        more: int,
        stops: Sequence[int] = (),
        begun: int = 0,
        seed: int = 0,
        **sampling: Unpack[Sampling],
    ) -> tuple[Tensor, ...]:
        """The kernel's arguments. begun: how many positions the cache holds already."""
        top_k, controls = checked(sampling)
        device = self.decoder.device
        count, given = rows.ids.shape
        ids = torch.zeros(self.batch, self.capacity, dtype=torch.int64, device=device)
        ids[:count, :given] = rows.ids
        free = self.batch - count
        most = given + more
        ends = [*stops, *[-1] * (STOPS - len(stops))]
        numbers = [given, most, top_k, seed, self._filler(stops), *ends]
        ended = [False] * count + [True] * free
        padding = [*rows.padding, *[given - 1] * free]
        values = (begun, begun + 1 < most, ended, padding, numbers, controls)
        return (ids, *(torch.tensor(x, device=device) for x in values))

    def _filler(self, stops: Sequence[int]) -> int:
        """The id that fills up sequences: one that the model can read."""
        known = (x for x in (self._pad, *stops) if x is not None)
        return next((x for x in known if 0 <= x < self.decoder.vocabulary), 0)

    def _rows(self, ids: Ids, mask: Tensor | None, more: int, follow: bool) -> Rows:
        """All ids before the answers."""
        pad = self._filler(self._stops)
        rows = arranged(ids, mask, self.batch, self.decoder.vocabulary, pad)
        if more < 1:
            raise InputError("an answer has a token at least")
        if follow:
            new = [x.to(self.decoder.device) for x in rows.sequences()]
            if len(new) != len(self._sequences):
                raise InputError(
                    f"{len(new)} sequences that go on: there are {len(self._sequences)} of the last call"
                )
            both = zip(self._sequences, new, strict=True)
            rows = padded([torch.cat(pair) for pair in both], self.batch, pad)
        if rows.ids.shape[1] + more > self.capacity:
            raise InputError(
                f"{rows.ids.shape[1]} tokens and {more} more are over the capacity of {self.capacity}: make a generator with a larger one"
            )
        return rows


def _ended(ids: Tensor, given: int, stops: Sequence[int]) -> Tensor:
    """A sequence up to the first id after the `given` ones that ends it."""
    for k, token in enumerate(ids[given:].tolist()):
        if token in stops:
            return ids[: given + k + 1]
    return ids
