"""MXFP4 and MXFP8: blocks of 32 small floats that share a power of two (OCP Microscaling Formats (MX) Specification 1.0)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from monotile.packing.bits import pack_bits, unpack_bits
from monotile.packing.format import Format, Tensors, grouped, scaled

BLOCK = 32
BIAS = 127  # of the shared exponents
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
LARGEST = {4: 2, 8: 8}  # exponents of the largest numbers of e2m1 and e4m3


@dataclass(frozen=True)
class Microscaling(Format):
    """codes: of 4 bits (e2m1) uint8 [n, k / 2], of 8 bits float8_e4m3fn [n, k]. exponents: float8_e8m0fnu [n, k / 32]:
    2 ** (e - 127), NaN for 255.

    The product is taken in float32 and rounded to the layer's dtype.
    """

    bits: int

    @property
    def in_dtype(self) -> frozenset[str]:
        return frozenset()

    def refusal(self, k: int) -> str | None:
        if k % BLOCK == 0:
            return None
        return f"blocks of {BLOCK} do not divide its {k} inputs: take another format"

    def encode(self, weight: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        w = grouped(weight, BLOCK)
        # frexp's mantissas are in [0.5, 1).
        shared = torch.frexp(w.abs().amax(-1, keepdim=True)).exponent - 1 - LARGEST[self.bits]
        exponents = (shared + BIAS).clamp(0, 254).to(torch.uint8).view(torch.float8_e8m0fnu)
        elements = (w / exponents.to(torch.float32)).flatten(-2)
        codes = _e2m1(elements) if self.bits == 4 else _e4m3(elements)
        return {"codes": codes, "exponents": exponents.squeeze(-1)}

    def decode(self, tensors: Tensors, dtype: torch.dtype) -> Tensor:
        codes = tensors["codes"]
        values = _numbers(unpack_bits(codes, 4)) if self.bits == 4 else codes.to(torch.float32)
        return scaled(values, tensors["exponents"].to(torch.float32)).to(dtype)


def _e2m1(x: Tensor) -> Tensor:
    """The nearest code, rounding half to even; numbers that are too large become the largest."""
    table = torch.tensor(E2M1, dtype=x.dtype, device=x.device)
    between, size = (table[1:] + table[:-1]) / 2, x.abs()
    below, above = torch.bucketize(size, between), torch.bucketize(size, between, right=True)
    codes = torch.where(below % 2 == 0, below, above) + 8 * torch.signbit(x)
    return pack_bits(codes.to(torch.uint8), 4)


def _numbers(codes: Tensor) -> Tensor:
    """What e2m1 stands for, float32. By the code's low bits, twice the magnitude is convex, in three straight lines."""
    size = codes.to(torch.int8) & 7
    twice = torch.maximum(torch.maximum(size, 2 * size - 4), 4 * size - 16)
    return twice.to(torch.float32) * (0.5 - (codes >> 3).to(torch.float32))


def _e4m3(x: Tensor) -> Tensor:
    largest = torch.finfo(torch.float8_e4m3fn).max
    return x.clamp(-largest, largest).to(torch.float8_e4m3fn)
