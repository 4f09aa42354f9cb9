"""The choice of a token, as a module that compiles like any other.

Thresholds are found by bisection: to count, or to add up, what lies above one takes a pass over the vocabulary and no order of it.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan

BISECTIONS = 40  # halvings of the span of logits: to the last bit of float32 and beyond
LOW = 0xFFFFFFFF  # of the 32 lower bits


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
    penalty = controls[Controls.PENALTY]
    before = logits.gather(-1, seen)
    logits = logits.scatter(-1, seen, torch.where(before < 0, before * penalty, before / penalty))
    temperature = controls[Controls.TEMPERATURE]

    def likeliest(logits: Tensor, *_: Tensor) -> Tensor:
        return logits.argmax(-1)

    def drawn(
        logits: Tensor, controls: Tensor, top_k: Tensor, seed: Tensor, step: Tensor
    ) -> Tensor:
        kept = _kept(logits / controls[Controls.TEMPERATURE], controls, top_k)
        noise = -torch.log(-torch.log(uniform(seed, step, *kept.shape)))
        return (kept + noise).argmax(-1)  # Gumbel-max: a token with its probability

    return torch.cond(temperature > 0, drawn, likeliest, (logits, controls, top_k, seed, step))


def _kept(logits: Tensor, controls: Tensor, top_k: Tensor) -> Tensor:
    """`logits` with -inf in place of what top_k, top_p and min_p leave out; the likeliest stays."""
    most = logits.amax(-1, keepdim=True)
    wanted = torch.where(top_k > 0, top_k, logits.shape[-1])
    least = _threshold(logits, most, lambda at: (logits >= at).sum(-1, keepdim=True) >= wanted)
    logits = torch.where(logits >= least, logits, float("-inf"))
    weights = torch.exp(logits - most)
    share = controls[Controls.TOP_P] * weights.sum(-1, keepdim=True)
    zero = torch.zeros_like(weights)

    def enough(at: Tensor) -> Tensor:
        return torch.where(logits >= at, weights, zero).sum(-1, keepdim=True) >= share

    least = _threshold(logits, most, enough)
    logits = torch.where(logits >= least, logits, float("-inf"))
    return torch.where(logits >= most + torch.log(controls[Controls.MIN_P]), logits, float("-inf"))


def _threshold(logits: Tensor, most: Tensor, enough: Callable[[Tensor], Tensor]) -> Tensor:
    """The greatest bound above which `enough` lies, of each row."""
    finite = torch.where(torch.isinf(logits), most, logits)

    def halved(span: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        low, high = span[0], span[1]
        middle = low + (high - low) / 2
        there = enough(middle)
        span = torch.stack((torch.where(there, middle, low), torch.where(there, high, middle)))
        return span, middle

    begin = torch.stack((finite.amin(-1, keepdim=True), most))
    span, _ = scan(halved, begin, torch.zeros(BISECTIONS, device=most.device))
    return torch.where(enough(span[1]), span[1], span[0])


def uniform(seed: Tensor, step: Tensor, *shape: int) -> Tensor:
    """Numbers in (0, 1), float32: the upper 23 bits of `philox`."""
    return (
        (philox(seed, step, *shape) >> 9).to(torch.float32) + 0.5
    ) * 2.0**-23  # never 1, whose noise is infinite


def philox(seed: Tensor, step: Tensor, *shape: int) -> Tensor:
    """Words of 32 bits, int64: of Philox 4x32-10 (Salmon et al., SC'11) the first one at counter (i, step, sequence), with key `seed`.

    shape: (count,), which is sequence 0, or (sequences, count).
    """
    i = torch.arange(shape[-1], device=seed.device)
    sequence = torch.zeros_like(i)
    if len(shape) > 1:
        sequence = torch.arange(shape[0], device=seed.device)[:, None].expand(shape)
    words = [
        (i & LOW).expand(shape),
        (step & LOW).expand(shape),
        ((step >> 32) & LOW).expand(shape),
        sequence,
    ]
    key = [seed & LOW, (seed >> 32) & LOW]
    for _ in range(10):
        a, b = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57  # products of 64 bits
        words = [
            ((b >> 32) & LOW) ^ words[1] ^ key[0],
            b & LOW,
            ((a >> 32) & LOW) ^ words[3] ^ key[1],
            a & LOW,
        ]
        key = [(key[0] + 0x9E3779B9) & LOW, (key[1] + 0xBB67AE85) & LOW]
    return words[0]
