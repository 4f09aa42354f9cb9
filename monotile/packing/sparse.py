"""N of M: of each M neighbours along k the N largest magnitudes are kept; with a vector of rows, the same positions in all of them
(vector-wise N:M)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from monotile.packing.bits import pack_bits, unpack_bits
from monotile.packing.format import Format, Tensors


@dataclass(frozen=True)
class Sparse(Format):
    """values: [n, k / group, kept] in the layer's dtype. positions: uint8 [n / vector, k / group, kept], the index of each value in its
    group, ascending; bit-packed to [n / vector, bytes] if these fill whole bytes of a row."""

    kept: int
    vector: int = 1

    def _bits(self, values: int) -> int:
        """Bits of a position, in rows of `values` values."""
        if self.vector > 1:
            return 8
        needed = next(b for b in (1, 2, 4, 8) if self.group is not None and self.group <= 1 << b)
        return needed if values * needed % 8 == 0 else 8

    @property
    def in_dtype(self) -> frozenset[str]:
        return frozenset({"values"})

    @property
    def together(self) -> int:
        return self.vector

    def refusal(self, k: int) -> str | None:
        if self.group is None or k % self.group == 0:
            return None
        return f"groups of {self.group} do not divide its {k} inputs: take another format"

    def encode(self, weight: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        w = weight.unflatten(-1, (-1, self.group or 1))
        vectors = w.unflatten(0, (-1, self.vector))
        size = vectors.square().sum(1) if self.vector > 1 else w.abs()
        by_size = size.argsort(dim=-1, descending=True, stable=True)
        positions = by_size[..., : self.kept].sort(-1).values
        values = w.gather(-1, positions.repeat_interleave(self.vector, 0))
        places = positions.to(torch.uint8)
        bits = self._bits(places[0].numel())
        packed = places if bits == 8 else pack_bits(places.flatten(-2), bits)
        return {"values": values.to(dtype), "positions": packed}

    def decode(self, tensors: Tensors, dtype: torch.dtype) -> Tensor:
        values, positions = tensors["values"].to(dtype), tensors["positions"]
        bits = self._bits(values.shape[-2] * values.shape[-1])
        if bits < 8:
            positions = unpack_bits(positions, bits).unflatten(-1, (-1, self.kept))
        elif self.group is not None and self.group & (self.group - 1) == 0:
            positions = positions & (self.group - 1)  # so that there is none beyond the group
        places = torch.arange(self.group or 0, dtype=torch.uint8, device=values.device)
        here = positions.unsqueeze(-1) == places
        if self.vector == 1:
            return torch.where(here, values.unsqueeze(-1), 0).sum(-2).flatten(-2)
        vectors = values.unflatten(0, (-1, self.vector)).unsqueeze(-1)
        return torch.where(here.unsqueeze(1), vectors, 0).sum(-2).flatten(-2).flatten(0, 1)
