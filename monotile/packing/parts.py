"""Helpers of the readers of packed checkpoints: the tensors of one layer, and codes in 32-bit words."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from monotile.errors import InputError
from monotile.packing.format import Format
from monotile.packing.integers import Integers


class PackedWeight(NamedTuple):
    """A weight in one of Monotile's formats, as `PackedLinear` takes it."""

    format: Format
    tensors: dict[str, Tensor]
    dtype: torch.dtype
    order: Tensor | None = None


class Parts(NamedTuple):
    """The tensors of a layer of a checkpoint, by their names without the layer's. n, k: the layer's outputs and inputs."""

    layer: str
    n: int
    k: int
    tensors: Mapping[str, Tensor]

    def take(self, name: str, shape: Sequence[int], *dtypes: torch.dtype) -> Tensor:
        """A tensor; raises InputError unless it has this shape and one of these dtypes."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise self.wrong(f"{name} is missing")
        if list(tensor.shape) != list(shape):
            raise self.wrong(f"{name} is {list(tensor.shape)}, and not {list(shape)}")
        if tensor.dtype not in dtypes:
            raise self.wrong(f"{name} is {tensor.dtype}, and not {' or '.join(map(str, dtypes))}")
        return tensor

    def wrong(self, what: str) -> InputError:
        return InputError(f"{self.layer or 'the layer'} ({self.n} × {self.k}): {what}")


HALVES = (torch.float16, torch.bfloat16, torch.float32)  # dtypes of scales
WORD = 32


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """int32 [..., m], little-endian, as uint8 [..., m * 32 / bits]."""
    mask = (1 << bits) - 1
    parts = [((words >> at) & mask).to(torch.uint8) for at in range(0, WORD, bits)]
    return torch.stack(parts, -1).flatten(-2)


def integer_weight(
    parts: Parts, bits: int, codes: Tensor, scale: Tensor, zero: Tensor
) -> PackedWeight:
    """codes: uint8 [n, k]. scale, zero: [n, groups]; zeros are any integers. Zeros that are all in the middle of the range are left out."""
    n_groups = scale.shape[1]
    group, symmetric = parts.k // n_groups, bool((zero == 1 << (bits - 1)).all())
    format = Integers(f"int{bits}", group, bits, symmetric)
    if reason := format.refusal(parts.k):
        raise parts.wrong(reason)
    if not symmetric and int(zero.max()) > 255:
        raise parts.wrong("a zero of 256 fits no byte: it is likely one of 0 that wrapped")
    return PackedWeight(format, format.stored(codes, scale, zero), scale.dtype)
