"""Prefill: reads a prompt many tokens at a time, by a second kernel over the cache and the parameters of the first."""

from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from monotile.compile import compile_loop
from monotile.config import Options
from monotile.errors import CaptureError, ScheduleError, UnsupportedOperatorError
from monotile.generation.decoder import Decoder
from monotile.runtime.module import CompiledModule
from monotile.transform.iterate import Iterate

LEAST = 8  # tokens: fewer are read one at a time
FIXED = 64  # tokens of each chunk of a model that cannot be captured for any number of them
ROOM = 1 << 30  # bytes of workspace: where more are needed, chunks are shorter
_REFUSED = (CaptureError, UnsupportedOperatorError, ScheduleError)


class Chunk(nn.Module):
    """A decoder's step for some tokens of a prompt. It computes no logits, which are not needed."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self,
        ids: Tensor,
        at: Tensor,
        goes_on: Tensor,
        end: Tensor,
        steps: Tensor,
        padding: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """ids: [capacity], or [batch, capacity] with padding, int64. at: scalar int64, the position of the first token to read. goes_on:
        scalar bool. end: scalar int64, where to stop. steps: [n], where n tokens are read at a time; its values do not matter. padding: see
        `Decoder`.

        Gives the second and the third for the next step. A chunk that would pass the end begins earlier, and computes some keys again.
        Only if there are fewer tokens than n does it pass the end; those keys are overwritten before they are read.
        """
        del goes_on  # of the loop
        count = steps.shape[0]
        first = torch.minimum(at, (end - count).clamp(min=0))
        positions = first + torch.arange(count, device=ids.device)
        tokens = ids.index_select(-1, positions).reshape(-1, count)
        self.decoder(tokens, positions, padding)
        after = at + count
        return after, after < end


class Reader:
    """Reads prompts in one launch each, whatever their length, in chunks of equal size.

    kernel: the CompiledModule, whose states are the decoder's buffers. chunk: tokens at a time at most, 1 where the decoder is recurrent.
    sized: whether each call chooses how many; otherwise chunks have `chunk` tokens.
    """

    def __init__(self, decoder: Decoder, chunk: int, example: tuple[Tensor, ...], target: str, options: Options) -> None:  # fmt: skip
        """example: ids, and the padding if there is one, as `read` takes them."""
        self.chunk = 1 if decoder.recurrent else min(chunk, decoder.capacity)
        self.sized = self.chunk > LEAST
        try:
            self.kernel: CompiledModule = self._compiled(decoder, example, target, options)
        except _REFUSED:
            if not self.sized:
                raise
            self.sized, self.chunk = False, min(self.chunk, FIXED)
            self.kernel = self._compiled(decoder, example, target, options)
        needed = self.kernel.plan.launch.workspace_bytes
        if needed > ROOM and self.chunk > FIXED:
            self.chunk = max(FIXED, self.chunk * ROOM // needed // FIXED * FIXED)
            self.kernel = self._compiled(decoder, example, target, options)

    def _compiled(
        self, decoder: Decoder, example: tuple[Tensor, ...], target: str, options: Options
    ) -> CompiledModule:
        """The kernel for chunks of `self.chunk` tokens, or up to as many."""
        ids, *padding = example
        least = LEAST // 2 if self.sized else self.chunk
        how = Iterate(inputs=(1, 2), predicate=1, bound=-(-decoder.capacity // least), unread=False)
        call = (ids, *self._given(0, 1, self.chunk, ids.device), *padding)
        shapes: Any = None
        if self.sized:
            tokens = torch.export.Dim("tokens", min=least, max=self.chunk)
            shapes = ({}, {}, {}, {}, {0: tokens}, *({} for _ in padding))
        return compile_loop(
            Chunk(decoder).eval(), call, how, target=target, options=_own(options), dynamic_shapes=shapes
        )  # fmt: skip

    def end(self, begun: int, given: int) -> int:
        """How many tokens of `given` should be in the cache before the first new one is chosen, where `begun` are: all but the last, or
        no more than `begun` where `read` is not worth a launch."""
        return given - 1 if given - 1 - begun >= LEAST else begun

    def read(self, ids: Tensor, begun: int, end: int, *padding: Tensor) -> None:
        """Computes the keys and values at positions from `begun` to `end`, of which there are LEAST at least if any. ids: up to the capacity,
        of which those from `end` on are ignored."""
        if begun < end:
            self.kernel(ids, *self.bounds(begun, end, ids.device), *padding)

    def bounds(self, begun: int, end: int, device: torch.device) -> tuple[Tensor, ...]:
        """The kernel's arguments behind the ids for positions from `begun` to `end`."""
        left = end - begun
        count = -(-left // -(-left // self.chunk)) if self.sized else self.chunk
        return self._given(begun, end, count, device)

    @staticmethod
    def _given(begun: int, end: int, count: int, device: torch.device) -> tuple[Tensor, ...]:
        numbers = (torch.tensor(x, device=device) for x in (begun, begun < end, end))
        return (*numbers, torch.empty(count, dtype=torch.bool, device=device))


def _own(options: Options) -> Options:
    """Options for this kernel: parameters have the order that the kernel for tokens wants, and keep it; the dump of that kernel is not
    overwritten."""
    folder = f"{options.dump_dir}/prompt" if options.dump_dir else None
    return msgspec.structs.replace(options, arrange_parameters=False, dump_dir=folder)
