"""Layers of AWQ checkpoints (AutoAWQ, version "gemm"): weight = (code - zero) * scale, 4 bits."""

import torch
from torch import Tensor

from monotile.packing.parts import HALVES, WORD, PackedWeight, Parts, integer_weight, unpack_words

BITS = 4
# Where in a word each of eight neighbouring outputs lies: it holds them in the order 0, 2, 4, 6, 1, 3, 5, 7.
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def read_awq(parts: Parts) -> PackedWeight:
    """qweight: int32 [k, n / 8]. qzeros: int32 [groups, n / 8]. scales: [groups, n]."""
    n, k = parts.n, parts.k
    scales = parts.tensors.get("scales")
    if scales is None or scales.dim() != 2 or not scales.shape[0] or k % scales.shape[0]:
        raise parts.wrong(f"scales is missing, or its groups do not divide {k} inputs")
    groups, words = scales.shape[0], n * BITS // WORD
    scales = parts.take("scales", [groups, n], *HALVES)
    codes = _outputs(parts.take("qweight", [k, words], torch.int32))
    zeros = _outputs(parts.take("qzeros", [groups, words], torch.int32))
    return integer_weight(parts, BITS, codes.T.contiguous(), scales.T, zeros.T)


def _outputs(words: Tensor) -> Tensor:
    """[rows, n] uint8: the codes with the outputs in order."""
    codes = unpack_words(words, BITS).unflatten(-1, (-1, len(PLACES)))
    return codes[..., list(PLACES)].flatten(-2)
