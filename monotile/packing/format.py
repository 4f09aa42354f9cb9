"""The interface of a format of packed weights."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Format(ABC):
    """How a weight [n, k] is stored as tensors. Rows are encoded independently, or `together` neighbouring rows at a time. group: the
    number of neighbours along k that share a scale; None: a whole row."""

    name: str
    group: int | None

    @property
    @abstractmethod
    def in_dtype(self) -> frozenset[str]:
        """Names of the tensors that have the layer's dtype, and are converted with it. All others keep theirs."""

    @property
    def together(self) -> int:
        """Neighbouring rows that are encoded together."""
        return 1

    @abstractmethod
    def refusal(self, k: int) -> str | None:
        """Why rows of k weights cannot be packed, and what to do about it; None if they can."""

    @abstractmethod
    def encode(self, weight: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """weight: [rows, k], finite. Each tensor has a row for each row of the weight, or for each group of rows that are encoded together."""

    def tables(self, device: torch.device) -> dict[str, Tensor]:
        """Tensors that decoding needs and that are shared by all rows."""
        return {}

    @abstractmethod
    def decode(self, tensors: Tensors, dtype: torch.dtype) -> Tensor:
        """The weight [n, k]. tensors: those of `encode` and `tables`."""


def grouped(weight: Tensor, group: int | None) -> Tensor:
    """[n, k] as [n, groups, group] float32."""
    return weight.to(torch.float32).unflatten(-1, (-1, group or weight.shape[-1]))


def scaled(values: Tensor, scale: Tensor) -> Tensor:
    """Each group of `values`, [n, k], times its `scale`, [n, groups]."""
    groups = scale.shape[-1]
    return (values.unflatten(-1, (groups, -1)) * scale.unsqueeze(-1)).flatten(-2)


def group_refusal(group: int | None, k: int) -> str | None:
    """Why groups of this size do not fit rows of k; None if they do."""
    if group is None or k % group == 0:
        return None
    fits = next(g for g in range(min(group, k), 0, -1) if k % g == 0)
    return (
        f"groups of {group} do not divide its {k} inputs: take group={fits} or group=None (a row)"
    )


def byte_refusal(bits: int, k: int) -> str | None:
    """Why codes of so many bits do not fill whole bytes of a row of k; None if they do."""
    per = 8 // bits
    if k % per == 0:
        return None
    return f"its {k} inputs do not fill bytes of {per} codes: take int8 or fp8"
