"""Floats of 8 bits with a scale: weight = code * scale."""

from dataclasses import dataclass

import torch
from torch import Tensor

from monotile.packing.format import Format, Tensors, group_refusal, grouped, scaled

# What the largest magnitude of a group becomes: e4m3's largest. e5m2's would make scales that float16 has no digits for.
LARGEST = 448.0


@dataclass(frozen=True)
class Floats(Format):
    """codes: [n, k] in `element`. scale: [n, groups] in the layer's dtype."""

    element: torch.dtype

    @property
    def in_dtype(self) -> frozenset[str]:
        return frozenset({"scale"})

    def refusal(self, k: int) -> str | None:
        return group_refusal(self.group, k)

    def encode(self, weight: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        w, largest = grouped(weight, self.group), torch.finfo(self.element).max
        scale = (w.abs().amax(-1, keepdim=True) / LARGEST).to(dtype)
        scale = torch.where(scale == 0, 1, scale)
        codes = (w / scale.to(torch.float32)).clamp(-largest, largest).flatten(-2)
        return {"codes": codes.to(self.element), "scale": scale.squeeze(-1)}

    def decode(self, tensors: Tensors, dtype: torch.dtype) -> Tensor:
        return scaled(tensors["codes"].to(dtype), tensors["scale"].to(dtype))
