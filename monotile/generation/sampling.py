"""Sampling of a token, as a module that compiles like any other.

A token is drawn by the Gumbel-max trick: the argmax of logits with noise. top_k, top_p and min_p are then checked for that token alone.
If one excludes it, it excludes all tokens that are no more likely, and the argmax of the others is next (rejection sampling as in
FlashInfer, but with the same noise, so that the result is a draw from the tokens that are not excluded). A check is one pass over the
vocabulary, and the first token mostly passes.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop

from monotile.frontends.torch.philox import philox

WAYS, ROUNDS = 8, 14  # parts of a span of logits, and how often it is cut, at most
LOG2_E = 1 / math.log(2)
PARTS = 128  # of the vocabulary, each of which has a most likely token


class Controls:
    """The position of each control in a tensor of them, float32."""

    TEMPERATURE, TOP_P, MIN_P, PENALTY = range(4)
    COUNT = 4


def choose(
    logits: Tensor, seen: Tensor, controls: Tensor, top_k: Tensor, seed: Tensor, step: Tensor
) -> Tensor:
    """The chosen token, a scalar int64; or one for each sequence, [batch] int64.

    logits: [vocabulary], or [batch, vocabulary], float32. seen: [n] or [batch, n] int64, the tokens so far; unused entries repeat any of
    the others. controls: see `Controls`. A temperature of 0 takes the most likely token, the first of equals. top_k: only the k most
    likely ones; 0 for all. seed, step: scalars int64 that determine the random numbers. The first sequence has those of a single one. In
    the order of transformers' processors: penalty, temperature, top_k, top_p, min_p.
    """
    temperature, penalty = controls[Controls.TEMPERATURE], controls[Controls.PENALTY]
    given = (logits, seen, controls, top_k, seed, step)
    return torch.cond((temperature > 0) | (penalty != 1), _drawn, _likeliest, given)


def _likeliest(logits: Tensor, *_: Tensor) -> Tensor:
    return _argmax(logits, logits, torch.full_like(logits[..., :1], float("-inf"))).squeeze(-1)


def _drawn(
    logits: Tensor, seen: Tensor, controls: Tensor, top_k: Tensor, seed: Tensor, step: Tensor
) -> Tensor:
    given = (logits, seen, controls, seed, step)
    logits, noisy = torch.cond(controls[Controls.PENALTY] != 1, _penalised, _scaled, given)
    most = logits.amax(-1, keepdim=True)
    below = _before(most + torch.log(controls[Controls.MIN_P]))
    token = _argmax(noisy, logits, below)
    limited = (controls[Controls.TOP_P] < 1) | (top_k > 0)
    given = (token, logits, noisy, most, below, controls, top_k)
    return torch.cond(limited, _not_excluded, lambda token, *_: token.clone(), given).squeeze(-1)


def _not_excluded(
    token: Tensor, logits: Tensor, noisy: Tensor, most: Tensor, below: Tensor, controls: Tensor, top_k: Tensor
) -> Tensor:  # fmt: skip
    """The position of the greatest of `noisy` that neither top_k nor top_p excludes. token: of all whose logits are above `below`."""
    share = controls[Controls.TOP_P]
    both = (top_k > 0) & (share < 1)  # top_p is a fraction of the probability that top_k leaves
    least = torch.cond(both, _kth_greatest, _lowest, (logits, most, top_k))
    below = torch.maximum(below, _before(least))
    total = torch.where(logits >= least, torch.exp(logits - most), 0).sum(-1, keepdim=True)
    # A token is excluded where as many as `top_k`, or `top_p` of the probability, are above it: weights, of which `limit` excludes.
    counted = (top_k > 0) & ~both
    weights = torch.where(counted, 1, torch.exp2((logits - most) * LOG2_E))  # exp would be stored first, for both  # fmt: skip
    limit = torch.where(counted, top_k, torch.where(share < 1, share * total, float("inf")))
    steps = torch.arange(WAYS, device=most.device).to(most.dtype) / WAYS

    def goes_on(_: Tensor, __: Tensor, excluded: Tensor) -> Tensor:
        return excluded.any()

    def tried(token: Tensor, bound: Tensor, excluded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """bound: the token's logit, or a greater one that is excluded."""
        bounds = bound + (most - bound) * steps
        above = torch.where(logits[..., None, :] > bounds[..., None], weights[..., None, :], 0)
        above = above.sum(-1)
        out = above >= limit
        first = out[..., :1] | (bound <= below) | (logits.gather(-1, token) < bound)
        excluded = excluded & first & (above[..., :1] > 0)
        following = _argmax(noisy, logits, torch.maximum(bound, below))
        token = torch.where(excluded, following, token)
        bound = torch.where(out, bounds, bound).amax(-1, keepdim=True)
        return token, torch.maximum(logits.gather(-1, token), bound), excluded

    first = token.clone(), logits.gather(-1, token), torch.ones_like(token, dtype=torch.bool)
    return while_loop(goes_on, tried, first)[0]


def _scaled(
    logits: Tensor, _: Tensor, controls: Tensor, seed: Tensor, step: Tensor
) -> tuple[Tensor, Tensor]:
    """Logits divided by the temperature, and those with noise, whose argmax is a draw by probability."""
    temperature = controls[Controls.TEMPERATURE]
    noise = -torch.log(-torch.log(uniform(seed, step, *logits.shape)))
    logits = logits / torch.where(temperature > 0, temperature, 1)
    return logits, logits + torch.where(temperature > 0, noise, 0)


def _penalised(
    logits: Tensor, seen: Tensor, controls: Tensor, seed: Tensor, step: Tensor
) -> tuple[Tensor, Tensor]:
    penalty, before = controls[Controls.PENALTY], logits.gather(-1, seen)
    after = torch.where(before < 0, before * penalty, before / penalty)
    return _scaled(logits.scatter(-1, seen, after), seen, controls, seed, step)


def _argmax(x: Tensor, logits: Tensor, bound: Tensor) -> Tensor:
    """The position of the greatest of `x` where `logits` are above `bound`, [..., 1], the first of equals: first in parts, so that many
    workers share it."""
    x, logits, bound = _parts(x), _parts(logits), bound[..., None]
    best = torch.where(logits > bound, x, float("-inf")).argmax(-1, keepdim=True)
    values = torch.where(logits.gather(-1, best) > bound, x.gather(-1, best), float("-inf"))
    part = values.squeeze(-1).argmax(-1, keepdim=True)
    return part * x.shape[-1] + best.squeeze(-1).gather(-1, part)


def _parts(x: Tensor) -> Tensor:
    """[..., n] as [..., PARTS, n / PARTS], padded with -inf."""
    each = -(-x.shape[-1] // PARTS)
    padded = F.pad(x, (0, PARTS * each - x.shape[-1]), value=float("-inf"))
    return padded.reshape(*x.shape[:-1], PARTS, each)


def _before(x: Tensor) -> Tensor:
    """The greatest number below each."""
    return torch.nextafter(x, torch.full_like(x, float("-inf")))


def _lowest(_: Tensor, most: Tensor, __: Tensor) -> Tensor:
    return torch.full_like(most, float("-inf"))


def _kth_greatest(logits: Tensor, most: Tensor, count: Tensor) -> Tensor:
    """A bound, [..., 1], such that the `count` greatest of each row are not below it, and of the others only those equal to the least of
    them."""
    lowest = torch.where(torch.isinf(logits), most, logits).amin(-1, keepdim=True)
    steps = torch.arange(WAYS + 1, device=most.device).to(most.dtype) / WAYS

    def goes_on(turn: Tensor, _: Tensor, found: Tensor) -> Tensor:
        return (turn < ROUNDS) & ~found.all()

    def narrowed(turn: Tensor, bounds: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """bounds: [..., WAYS + 1]: the first has `count` logits at or above it, the last fewer."""
        between = bounds[..., 1:-1]
        many = (logits[..., None, :] >= between[..., None]).sum(-1)
        low = torch.where(many >= count, between, bounds[..., :1]).amax(-1, keepdim=True)
        high = torch.where(many >= count, bounds[..., -1:], between).amin(-1, keepdim=True)
        found = (many == count).any(-1, keepdim=True)
        return turn + 1, low + (high - low) * steps, found

    over = most + (most - lowest + most.abs()) * 2.0**-20
    bounds = lowest + (over - lowest) * steps
    begin = torch.zeros_like(count), bounds, torch.zeros_like(most, dtype=torch.bool)
    return while_loop(goes_on, narrowed, begin)[1][..., :1].contiguous()


def uniform(seed: Tensor, step: Tensor, *shape: int) -> Tensor:
    """Numbers in (0, 1), float32: 23 of the `bits`."""
    upper = (bits(seed, step, *shape) >> 9) & 0x7FFFFF
    return (upper.to(torch.float32) + 0.5) * 2.0**-23  # never 1, whose noise is infinite


def bits(seed: Tensor, step: Tensor, *shape: int) -> Tensor:
    """64 random bits, int64, for each element, determined by the seed, the step, the position in a sequence and the sequence.

    shape: (count,), which is sequence 0, or (sequences, count).
    """
    counter = torch.arange(shape[-1], device=seed.device)
    if len(shape) > 1:
        counter = counter + (torch.arange(shape[0], device=seed.device)[:, None] << 32)
    return philox(counter, philox(step, seed))
