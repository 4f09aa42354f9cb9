"""Integers of 1, 2, 4 or 8 bits: weight = (code - zero) * scale."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from monotile.packing.bits import pack_bits, unpack_bits
from monotile.packing.format import (
    Format,
    Tensors,
    byte_refusal,
    group_refusal,
    grouped,
    scaled,
)

# Scales that are tried, as parts of the one at which no weight is clipped: few codes gain by clipping the largest.
RATIOS = {
    8: (128 / 127, 1.0),
    4: (15 / 14, 1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7),
    2: (1.5, 1.25, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4),
}


@dataclass(frozen=True)
class Integers(Format):
    """codes: uint8 [n, k * bits / 8]; symmetric codes of 8 bits are int8 [n, k]. scale: [n, groups] in the layer's dtype. zero: uint8 [n,
    groups]; a symmetric format has none, it is the middle of the range. Codes of one bit are -1 and 1."""

    bits: int
    symmetric: bool

    @property
    def in_dtype(self) -> frozenset[str]:
        return frozenset({"scale"})

    @property
    def middle(self) -> int:
        return 1 << (self.bits - 1)

    def refusal(self, k: int) -> str | None:
        return byte_refusal(self.bits, k) or group_refusal(self.group, k)

    def encode(self, weight: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        w = grouped(weight, self.group)
        if self.bits == 1:
            # Of all scales the mean magnitude has the least squared error.
            scale = w.abs().mean(-1).to(dtype)
            return {"codes": pack_bits((weight >= 0).to(torch.uint8), 1), "scale": scale}
        scale, zero = self._fitted(w, dtype)
        codes = self._codes(w, scale, zero).flatten(-2).to(torch.uint8)
        return self.stored(codes, scale.squeeze(-1).to(dtype), zero.squeeze(-1))

    def stored(self, codes: Tensor, scale: Tensor, zero: Tensor) -> dict[str, Tensor]:
        """The tensors of codes, uint8 [n, k], with scales and zeros, [n, groups]. The zeros of a symmetric format are left out."""
        signed = self.symmetric and self.bits == 8
        packed = (
            (codes.to(torch.int16) - self.middle).to(torch.int8)
            if signed
            else pack_bits(codes, self.bits)
        )
        tensors = {"scale": scale.contiguous(), "codes": packed.contiguous()}
        if not self.symmetric:
            tensors["zero"] = zero.to(torch.uint8).contiguous()
        return tensors

    def decode(self, tensors: Tensors, dtype: torch.dtype) -> Tensor:
        codes, scale = tensors["codes"], tensors["scale"].to(dtype)
        if self.bits == 1:
            signs = unpack_bits(codes, 1).to(torch.int8) * 2 - 1
            return scaled(signs.to(dtype), scale)
        if "zero" in tensors:
            # int16, which holds any difference: a compiler can see that.
            words = unpack_bits(codes, self.bits).to(torch.int16)
            words = words.unflatten(-1, (scale.shape[-1], -1))
            centred = (words - tensors["zero"].to(torch.int16).unsqueeze(-1)).flatten(-2)
        elif self.bits == 8:
            centred = codes
        else:
            centred = unpack_bits(codes, self.bits).to(torch.int8) - self.middle
        return scaled(centred.to(dtype), scale)

    def _fitted(self, w: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Scales, rounded to `dtype`, and zeros, [n, groups, 1] float32, with the least squared error among the candidates."""
        (scale, zero), *others = self._candidates(w, dtype)
        least = self._error(w, scale, zero)
        for candidate in others:
            scale, zero, least = self._better(w, (scale, zero, least), candidate)
        # Of these codes, the scale of the least squared error.
        steps = self._codes(w, scale, zero) - zero
        square = steps.square().sum(-1, keepdim=True)
        best = torch.where(square > 0, (steps * w).sum(-1, keepdim=True) / square, scale)
        scale, zero, _ = self._better(w, (scale, zero, least), (_rounded(best, dtype), zero))
        return scale, zero

    def _candidates(self, w: Tensor, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        top = 2 * self.middle - 1
        if self.symmetric:
            step = w.abs().amax(-1, keepdim=True) / (top / 2)
            zero = torch.full_like(step, self.middle)
            for ratio in RATIOS[self.bits]:
                yield _rounded(step * ratio, dtype), zero
        else:
            low = w.amin(-1, keepdim=True).clamp(max=0)
            step = (w.amax(-1, keepdim=True).clamp(min=0) - low) / top
            for ratio in RATIOS[self.bits]:
                scale = _rounded(step * ratio, dtype)
                yield scale, (-low * ratio / scale).round().clamp(0, top)

    def _better(
        self, w: Tensor, old: tuple[Tensor, Tensor, Tensor], new: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scale, zero and error of each group, from whichever candidate has the smaller error."""
        error = self._error(w, *new)
        less = error < old[2]
        found = [torch.where(less, n, o) for n, o in zip((*new, error), old, strict=True)]
        return found[0], found[1], found[2]

    def _codes(self, w: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        return (w / scale + zero).round().clamp(0, 2 * self.middle - 1)

    def _error(self, w: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        decoded = (self._codes(w, scale, zero) - zero) * scale
        return (decoded - w).square().sum(-1, keepdim=True)


def _rounded(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The scale in the layer's dtype. A zero scale, as of a group of zeros, becomes 1: all codes are zero then."""
    stored = scale.to(dtype).to(torch.float32)
    return torch.where(stored == 0, 1.0, stored)
