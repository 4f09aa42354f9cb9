"""Prefill: reads a prompt many tokens at a time, by a second kernel over the cache and the parameters of the first."""

import msgspec
import torch
from torch import Tensor, nn

from monotile.compile import compile_loop
from monotile.config import Options
from monotile.generation.decoder import Decoder
from monotile.runtime.module import CompiledModule
from monotile.transform.iterate import Iterate

LEAST = 8  # tokens: fewer are read one at a time


class Chunk(nn.Module):
    """A decoder's step for `chunk` tokens of a prompt. It computes no logits, which are not needed."""

    def __init__(self, decoder: Decoder, chunk: int) -> None:
        super().__init__()
        self.decoder, self.chunk = decoder, chunk

    def forward(
        self, ids: Tensor, at: Tensor, goes_on: Tensor, end: Tensor, padding: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """ids: [capacity], or [batch, capacity] with padding, int64. at: scalar int64, the position of the first token to read. goes_on:
        scalar bool. end: scalar int64, where to stop. padding: see `Decoder`.

        Gives the second and the third for the next step. The last chunk may have tokens after `end`, whose keys are overwritten before
        they are read. One that would not fit the cache begins earlier, and computes some keys again.
        """
        del goes_on  # of the loop
        first = at.clamp(max=self.decoder.capacity - self.chunk)
        positions = first + torch.arange(self.chunk, device=ids.device)
        tokens = ids.index_select(-1, positions).reshape(-1, self.chunk)
        self.decoder(tokens, positions, padding)
        after = at + self.chunk
        return after, after < end


class Reader:
    """Reads prompts in one launch each, whatever their length.

    kernel: the CompiledModule, whose states are the decoder's buffers. chunk: tokens at a time, 1 where the decoder is recurrent.
    """

    def __init__(self, decoder: Decoder, chunk: int, example: tuple[Tensor, ...], target: str, options: Options) -> None:  # fmt: skip
        """example: ids, and the padding if there is one, as `read` takes them."""
        self.chunk = 1 if decoder.recurrent else min(chunk, decoder.capacity)
        ids, *padding = example
        how = Iterate(
            inputs=(1, 2), predicate=1, bound=-(-decoder.capacity // self.chunk), unread=False
        )
        call = (ids, *self._bounds(0, 1, ids.device), *padding)
        self.kernel: CompiledModule = compile_loop(
            Chunk(decoder, self.chunk).eval(), call, how, target=target, options=_own(options)
        )

    def end(self, begun: int, given: int) -> int:
        """How many tokens of `given` should be in the cache before the first new one is chosen, where `begun` are: all but the last, or
        no more than `begun` where `read` is not worth a launch."""
        return given - 1 if given - 1 - begun >= LEAST else begun

    def read(self, ids: Tensor, begun: int, end: int, *padding: Tensor) -> None:
        """Computes the keys and values at positions from `begun` to `end`. ids: up to the capacity, of which those from `end` on are
        ignored."""
        if begun < end:
            self.kernel(ids, *self._bounds(begun, end, ids.device), *padding)

    @staticmethod
    def _bounds(begun: int, end: int, device: torch.device) -> tuple[Tensor, ...]:
        return tuple(torch.tensor(x, device=device) for x in (begun, begun < end, end))


def _own(options: Options) -> Options:
    """Options for this kernel: parameters have the order that the kernel for tokens wants, and keep it; the dump of that kernel is not
    overwritten."""
    folder = f"{options.dump_dir}/prompt" if options.dump_dir else None
    return msgspec.structs.replace(options, arrange_parameters=False, dump_dir=folder)
