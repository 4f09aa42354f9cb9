"""Codes of 1, 2 or 4 bits in bytes, little-endian: element i of a byte is at bit i * bits."""

import torch
from torch import Tensor


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """codes: uint8 [..., k], each below 2 ** bits. Returns uint8 [..., k * bits / 8]."""
    per = 8 // bits
    parts = codes.unflatten(-1, (-1, per)).unbind(-1)
    packed = parts[0].clone()
    for i, part in enumerate(parts[1:], 1):
        packed |= part << (i * bits)
    return packed


def unpack_bits(packed: Tensor, bits: int) -> Tensor:
    """The inverse of `pack_bits`."""
    if bits == 8:
        return packed
    mask = (1 << bits) - 1
    return torch.stack([(packed >> i) & mask for i in range(0, 8, bits)], -1).flatten(-2)
