"""N of M: of each M neighbours along k the N largest magnitudes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from monotile.packing.format import Format, Tensors


@dataclass(frozen=True)
class Sparse(Format):
    """values: [n, k / group, kept] in the layer's dtype. positions: uint8 of the same shape, each in [0, group), ascending."""

    kept: int

    @property
    def in_dtype(self) -> frozenset[str]:
        return frozenset({"values"})

    def refusal(self, k: int) -> str | None:
        if self.group is None or k % self.group == 0:
            return None
        return f"groups of {self.group} do not divide its {k} inputs: take another format"

    def encode(self, weight: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        w = weight.unflatten(-1, (-1, self.group or 1))
        by_size = w.abs().argsort(dim=-1, descending=True, stable=True)
        positions = by_size[..., : self.kept].sort(-1).values
        values = w.gather(-1, positions)
        return {"values": values.to(dtype), "positions": positions.to(torch.uint8)}

    def decode(self, tensors: Tensors, dtype: torch.dtype) -> Tensor:
        values, positions = tensors["values"].to(dtype), tensors["positions"]
        places = torch.arange(self.group or 0, dtype=torch.uint8, device=values.device)
        here = positions.unsqueeze(-1) == places
        return torch.where(here, values.unsqueeze(-1), 0).sum(-2).flatten(-2)
