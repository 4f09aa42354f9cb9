"""The choice of a token, as a module that compiles like any other.

Thresholds are found by narrowing a span: to count, or to add up, what lies above some bounds takes a pass over the vocabulary and no order
of it.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops.scan import scan

from monotile.frontends.torch.philox import philox

WAYS, ROUNDS = (
    8,
    14,
)  # parts of the span of logits, and how often one is cut so: to the last bit of float32 and beyond
PARTS = 128  # of the vocabulary, each of which has a likeliest token


class Controls:
    """Where each control lies in a tensor of them, float32."""

    TEMPERATURE, TOP_P, MIN_P, PENALTY = range(4)
    COUNT = 4


def choose(
    logits: Tensor, seen: Tensor, controls: Tensor, top_k: Tensor, seed: Tensor, step: Tensor
) -> Tensor:
    """The chosen token, a scalar int64; or one for each sequence, [batch] int64.

    logits: [vocabulary], or [batch, vocabulary], float32. seen: [n] or [batch, n] int64, the tokens so far; those that are not there yet are
    any of the others. controls: see `Controls`. A temperature of 0 takes the likeliest, the first of equals. top_k: the k likeliest alone;
    0 for all. seed, step: scalars int64 by which the random numbers are known. The first sequence has those of one alone.
    In the order of transformers' processors: penalty, temperature, top_k, top_p, min_p.
    """
    penalty, temperature = controls[Controls.PENALTY], controls[Controls.TEMPERATURE]

    def likeliest(logits: Tensor, *_: Tensor) -> Tensor:
        return _argmax(logits)

    def drawn(
        logits: Tensor, seen: Tensor, controls: Tensor, top_k: Tensor, seed: Tensor, step: Tensor
    ) -> Tensor:
        penalty, temperature = controls[Controls.PENALTY], controls[Controls.TEMPERATURE]
        before = logits.gather(-1, seen)
        after = torch.where(before < 0, before * penalty, before / penalty)
        logits = logits.scatter(-1, seen, after)
        kept = _kept(logits / torch.where(temperature > 0, temperature, 1), controls, top_k)
        noise = -torch.log(-torch.log(uniform(seed, step, *kept.shape)))
        noise = torch.where(temperature > 0, noise, 0)
        return _argmax(kept + noise)  # Gumbel-max: a token with its probability

    given = (logits, seen, controls, top_k, seed, step)
    return torch.cond((temperature > 0) | (penalty != 1), drawn, likeliest, given)


def _argmax(logits: Tensor) -> Tensor:
    """The position of the greatest along the last dimension, the first of equals: of parts first, which is work for many."""
    count = logits.shape[-1]
    each = -(-count // PARTS)
    padded = F.pad(logits, (0, PARTS * each - count), value=float("-inf"))
    parts = padded.reshape(*logits.shape[:-1], PARTS, each)
    best = parts.amax(-1).argmax(-1, keepdim=True)
    return (best * each + parts.argmax(-1).gather(-1, best)).squeeze(-1)


def _kept(logits: Tensor, controls: Tensor, top_k: Tensor) -> Tensor:
    """`logits` with -inf in place of what top_k, top_p and min_p leave out; the likeliest stays. A bound that nobody asks for is not looked for."""
    most = logits.amax(-1, keepdim=True)
    share = controls[Controls.TOP_P].clone()  # no view, for torch.cond

    def open_end(_: Tensor, most: Tensor, *__: Tensor) -> Tensor:
        return torch.full_like(most, float("-inf"))

    least = torch.cond(top_k > 0, _least_of_many, open_end, (logits, most, top_k))
    logits = torch.where(logits >= least, logits, float("-inf"))
    least = torch.cond(share < 1, _least_of_share, open_end, (logits, most, share))
    least = torch.maximum(least, most + torch.log(controls[Controls.MIN_P]))
    return torch.where(logits >= least, logits, float("-inf"))


def _least_of_many(logits: Tensor, most: Tensor, count: Tensor) -> Tensor:
    """The least of the `count` greatest of each row, [..., 1]."""

    def many(at: Tensor) -> Tensor:
        return (logits[..., None, :] >= at[..., None]).sum(-1) >= count

    return _threshold(logits, most, many)


def _least_of_share(logits: Tensor, most: Tensor, share: Tensor) -> Tensor:
    """The least of the greatest that have `share` of the probability of each row, [..., 1]."""
    weights = torch.exp(logits - most)
    wanted = share * weights.sum(-1, keepdim=True)
    zero = torch.zeros_like(weights)

    def enough(at: Tensor) -> Tensor:
        above = torch.where(logits[..., None, :] >= at[..., None], weights[..., None, :], zero[..., None, :])  # fmt: skip
        return above.sum(-1) >= wanted

    return _threshold(logits, most, enough)


def _threshold(logits: Tensor, most: Tensor, enough: Callable[[Tensor], Tensor]) -> Tensor:
    """The greatest bound above which `enough` lies, of each row. enough: of bounds [..., n]."""
    finite = torch.where(torch.isinf(logits), most, logits)
    steps = torch.arange(1, WAYS, device=most.device).to(most.dtype) / WAYS

    def narrowed(span: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        low, high = span[0], span[1]
        between = low + (high - low) * steps
        there = enough(between)
        low = torch.where(there, between, low).amax(-1, keepdim=True)
        high = torch.where(there, high, between).amin(-1, keepdim=True)
        return torch.stack((low, high)), low

    begin = torch.stack((finite.amin(-1, keepdim=True), most))
    span, _ = scan(narrowed, begin, torch.zeros(ROUNDS, device=most.device))
    return torch.where(enough(span[1]), span[1], span[0])


def uniform(seed: Tensor, step: Tensor, *shape: int) -> Tensor:
    """Numbers in (0, 1), float32: 23 of the `bits`."""
    upper = (bits(seed, step, *shape) >> 9) & 0x7FFFFF
    return (upper.to(torch.float32) + 0.5) * 2.0**-23  # never 1, whose noise is infinite


def bits(seed: Tensor, step: Tensor, *shape: int) -> Tensor:
    """64 random bits, int64, for each element, known by the seed, the step, the place in a sequence and the sequence.

    shape: (count,), which is sequence 0, or (sequences, count).
    """
    counter = torch.arange(shape[-1], device=seed.device)
    if len(shape) > 1:
        counter = counter + (torch.arange(shape[0], device=seed.device)[:, None] << 32)
    return philox(counter, philox(step, seed))
