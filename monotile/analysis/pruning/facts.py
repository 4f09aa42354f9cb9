"""Known values of parameters: which elements are zero, and all elements of vectors.

Passes never read a parameter; they are given these facts instead. They are part of the cache key.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from monotile.ir.dtype import DType

Mask = NDArray[np.bool_]
Array = NDArray[Any]

LONGEST = 1 << 16  # elements of a vector whose values are known


class Zeros(msgspec.Struct, frozen=True):
    """One parameter. bits: which elements are zero, row-major, eight in a byte; b"" for none. values: all elements of a vector, that is
    a tensor with one extent above 1; () if unknown; None for an element that is unknown, or NaN."""

    shape: tuple[int, ...]
    bits: bytes = b""
    values: tuple[float | None, ...] = ()

    @property
    def vector(self) -> NDArray[np.float64]:
        """`values`, and NaN for unknown ones."""
        return np.array([np.nan if x is None else x for x in self.values])

    @property
    def mask(self) -> Mask:
        """Where the parameter is known to be zero."""
        if self.values:
            return self.vector.reshape(self.shape) == 0
        if not self.bits:
            return np.zeros(self.shape, bool)
        flat = np.unpackbits(np.frombuffer(self.bits, np.uint8), count=math.prod(self.shape))
        return flat.astype(bool).reshape(self.shape)

    def permuted(self, order: Sequence[int]) -> "Zeros":
        """For the parameter permuted so that dimension `order[k]` is dimension k."""
        shape = tuple(self.shape[d] for d in order)
        if not self.bits:
            return Zeros(shape, values=self.values)
        return Zeros(shape, packed(self.mask.transpose(*order)))

    def within(self, kept: Mapping[int, NDArray[np.int64]], *, vectors: str) -> "Zeros":
        """Only the facts about elements outside of the kept coordinates of each dimension. vectors: of which elements of a vector:
        "none", "zero" or "all"."""
        removed = np.zeros(self.shape, bool)
        for d, coordinates in kept.items():
            gone = np.ones(self.shape[d], bool)
            gone[coordinates] = False
            removed |= gone.reshape([-1 if k == d else 1 for k in range(len(self.shape))])
        if not self.values:
            return Zeros(self.shape, packed(self.mask & removed))
        if vectors == "none":
            return Zeros(self.shape)
        gone = removed.reshape(-1)
        return Zeros(
            self.shape,
            values=tuple(
                x if g and (x == 0 or vectors == "all") else None
                for x, g in zip(self.values, gone, strict=True)
            ),
        )

    @property
    def nothing(self) -> bool:
        """Whether nothing is known."""
        return not self.bits and all(x is None for x in self.values)


Facts = Mapping[str, Zeros]  # by the name of a weight's part


def packed(mask: Mask) -> bytes:
    """As `Zeros.bits`."""
    return np.packbits(mask.reshape(-1)).tobytes() if mask.any() else b""


def vector(shape: tuple[int, ...], values: Sequence[float]) -> Zeros:
    """Facts for a vector with these elements."""
    return Zeros(shape, values=tuple(None if math.isnan(x) else x for x in values))


def is_vector(shape: Sequence[int]) -> bool:
    """Whether the values of a parameter of that shape are recorded."""
    return 1 < max(shape, default=1) == math.prod(shape) <= LONGEST


def enough(zeros: int, shape: Sequence[int]) -> bool:
    """Whether so many zeros can fill a slice of a parameter of that shape."""
    return zeros * max(shape, default=1) >= math.prod(shape) > 0


def facts_of(arrays: Mapping[str, Array]) -> dict[str, Zeros]:
    """Facts of floating-point arrays."""
    found: dict[str, Zeros] = {}
    for name, x in arrays.items():
        if not DType.from_numpy(x.dtype).is_float or DType.from_numpy(x.dtype).is_float8:
            continue
        if is_vector(x.shape):
            found[name] = vector(x.shape, x.astype(float).reshape(-1).tolist())
            continue
        zero = np.asarray(x == 0)
        if enough(int(zero.sum()), x.shape):
            found[name] = Zeros(x.shape, packed(zero))
    return found
