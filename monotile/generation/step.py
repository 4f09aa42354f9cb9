"""A decoder's step for one token: reads it, chooses the next one, and decides whether there is another step."""

import torch
from torch import Tensor, nn

from monotile.generation.sampling import choose
from monotile.transform.iterate import Iterate

STOPS = 8  # ids that may end a sequence
GIVEN, MOST, TOP_K, SEED = range(4)  # indices of a call's numbers


class Step(nn.Module):
    """decoder: with its cache (see `decoder.Decoder`), of `capacity` tokens."""

    def __init__(self, decoder: nn.Module, capacity: int) -> None:
        super().__init__()
        self.decoder, self.capacity = decoder, capacity

    def forward(
        self, ids: Tensor, at: Tensor, goes_on: Tensor, numbers: Tensor, stops: Tensor, controls: Tensor, *watched: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """ids: [capacity] int64. at: scalar int64, the position of the token to read. goes_on: scalar bool. numbers: [4] int64: the number
        of given ids, the maximum number in the end, `top_k` and `seed` of `sampling.choose`. stops: [STOPS] int64, padded with -1.
        controls: `sampling.Controls`. watched: `news`, [capacity] int64, which receives each token, and `stop`, a scalar int64, 0 as
        long as the kernel may go on.

        Gives the first three for the next step: ids with the next one, which is the given one as long as there are some.
        """
        del goes_on  # of the loop
        news, stop = watched
        token = ids.index_select(0, at.reshape(1))
        logits = self.decoder(input_ids=token[None], cache_position=at.reshape(1))
        after = next_position(at, self.capacity)
        seen = torch.where(torch.arange(self.capacity, device=ids.device) <= at, ids, ids[0])
        given, most, top_k, seed = (x.clone() for x in numbers.unbind())  # no views, for torch.cond
        chosen = choose(logits.float().reshape(-1), seen, controls, top_k, seed, after)
        known = ids.index_select(0, after.reshape(1)).reshape(())
        written = torch.where(after < given, known, chosen)
        news.index_copy_(0, after.reshape(1), written.reshape(1))
        ids = ids.index_copy(0, after.reshape(1), written.reshape(1))
        ended = (after >= given) & (written == stops).any()
        return ids, after, (after + 1 < most) & ~ended & (stop == 0)


def next_position(at: Tensor, capacity: int) -> Tensor:
    """The position after `at`, at most the last one. at + 1 is also the new length of a cache: as one value, it would be read from the
    cache, behind a hand-off, where each worker can count for itself."""
    return at.clamp(max=capacity - 2) + 1


def iterated(capacity: int) -> Iterate:
    """How the step becomes a loop: its results are its first three arguments. A cache layer's own length equals `at`, and is not kept."""
    return Iterate(inputs=(0, 1, 2), predicate=2, bound=capacity, unread=False, watched=(6, 7))
