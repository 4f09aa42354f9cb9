"""Layers of GPTQ checkpoints (AutoGPTQ, GPTQModel): weight = (code - zero) * scale."""

import torch
from torch import Tensor

from monotile.packing.parts import HALVES, WORD, PackedWeight, Parts, integer_weight, unpack_words

BITS = (2, 4, 8)


def read_gptq(parts: Parts, version: int) -> PackedWeight:
    """qweight: int32 [k * bits / 32, n]. scales: [groups, n]. qzeros: int32 [groups, n * bits / 32], in version 1 the zeros minus one.
    g_idx: [k], the group of each input, in any order (act-order); without it groups are neighbours."""
    n, k = parts.n, parts.k
    rows, groups = (_first(parts, name) for name in ("qweight", "scales"))
    bits, rest = divmod(rows * WORD, k)
    if bits not in BITS or rest:
        raise parts.wrong(f"qweight has {rows} rows: not those of 2, 4 or 8 bits for {k} inputs")
    if k % groups:
        raise parts.wrong(f"{groups} groups do not divide its {k} inputs")
    words = parts.take("qweight", [rows, n], torch.int32)
    scales = parts.take("scales", [groups, n], *HALVES)
    zeros = unpack_words(parts.take("qzeros", [groups, n * bits // WORD], torch.int32), bits)
    zeros = zeros.to(torch.int16) + (1 if version == 1 else 0)
    codes, order = unpack_words(words.T.contiguous(), bits), _order(parts, groups)
    if order is not None:
        codes = codes[:, order]
    return integer_weight(parts, bits, codes, scales.T, zeros.T)._replace(order=order)


def _first(parts: Parts, name: str) -> int:
    """The first extent of a matrix."""
    tensor = parts.tensors.get(name)
    if tensor is None or tensor.dim() != 2 or not tensor.shape[0]:
        raise parts.wrong(f"{name} is missing or no matrix")
    return tensor.shape[0]


def _order(parts: Parts, groups: int) -> Tensor | None:
    """The inputs ordered by group; None if they are in this order."""
    if "g_idx" not in parts.tensors:
        return None
    index = parts.take("g_idx", [parts.k], torch.int32, torch.int64).long()
    sizes = torch.bincount(index.clamp(0, groups), minlength=groups).tolist()
    if int(index.min()) < 0 or sizes != [parts.k // groups] * groups:
        raise parts.wrong(f"g_idx does not make {groups} groups of the same size of its inputs")
    order = index.argsort(stable=True)
    return None if torch.equal(order, torch.arange(parts.k)) else order
