"""Element types."""

import enum
import functools

import ml_dtypes
import numpy as np


class DType(enum.Enum):
    """An element type. Its value is the name in NumPy and PyTorch."""

    BOOL = "bool"
    U8 = "uint8"
    I8 = "int8"
    I16 = "int16"
    I32 = "int32"
    I64 = "int64"
    F8E4M3 = "float8_e4m3fn"
    F8E5M2 = "float8_e5m2"
    F8E8M0 = "float8_e8m0fnu"
    F16 = "float16"
    BF16 = "bfloat16"
    F32 = "float32"
    F64 = "float64"

    __hash__ = object.__hash__  # Enum's own hashes the name anew each time

    @functools.cached_property
    def numpy(self) -> "np.dtype[np.generic]":
        return np.dtype(getattr(ml_dtypes, self.value, self.value))

    @property
    def is_numpys(self) -> bool:
        """Whether NumPy itself has it; ml_dtypes has the others."""
        return not hasattr(ml_dtypes, self.value)

    @functools.cached_property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        wider = self in (DType.F16, DType.BF16, DType.F32, DType.F64)
        return wider or self.is_float8

    @property
    def is_float8(self) -> bool:
        """Whether it is for storage alone: its values are loaded, stored, selected and cast, and no operation but `bits` takes them.

        `F8E4M3` has no infinities, `F8E8M0` only powers of two: neither zero nor a sign."""
        return self in (DType.F8E4M3, DType.F8E5M2, DType.F8E8M0)

    @property
    def is_int(self) -> bool:
        """Whether it is an integer type, signed or unsigned; `BOOL` is not."""
        return self in (DType.U8, DType.I8, DType.I16, DType.I32, DType.I64)

    @property
    def compute(self) -> "DType":
        """The type in which arithmetic on this element runs: float32 for 8-bit and 16-bit floats."""
        small = self in (DType.F16, DType.BF16) or self.is_float8
        return DType.F32 if small else self

    def __repr__(self) -> str:
        return self.value

    def __str__(self) -> str:
        return self.value

    @staticmethod
    def from_numpy(dtype: "np.dtype[np.generic]") -> "DType":
        return DType(dtype.name)
