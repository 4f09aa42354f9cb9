"""Codes of 4 bits for 16 values of a table (NF4), times the largest magnitude of a block."""

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

# Quantiles of a normal distribution, as bitsandbytes has them (Dettmers et al., QLoRA, 2023).
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


@dataclass(frozen=True)
class NormalFloat(Format):
    """codes: uint8 [n, k / 2]. absmax: float32 [n, groups]. table: float32 [16]. The product is rounded to the layer's dtype."""

    @property
    def in_dtype(self) -> frozenset[str]:
        return frozenset()

    def refusal(self, k: int) -> str | None:
        return byte_refusal(4, k) or group_refusal(self.group, k)

    def tables(self, device: torch.device) -> dict[str, Tensor]:
        return {"table": torch.tensor(NF4, dtype=torch.float32, device=device)}

    def encode(self, weight: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        w = grouped(weight, self.group)
        absmax = w.abs().amax(-1, keepdim=True)
        table = self.tables(weight.device)["table"]
        between = (table[1:] + table[:-1]) / 2
        codes = torch.bucketize(w / torch.where(absmax == 0, 1, absmax), between).flatten(-2)
        return {"codes": pack_bits(codes.to(torch.uint8), 4), "absmax": absmax.squeeze(-1)}

    def decode(self, tensors: Tensors, dtype: torch.dtype) -> Tensor:
        values = tensors["table"][unpack_bits(tensors["codes"], 4).long()]
        return scaled(values, tensors["absmax"]).to(dtype)
