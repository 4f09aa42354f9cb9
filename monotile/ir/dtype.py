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
    F16 = "float16"
    BF16 = "bfloat16"
    F32 = "float32"
    F64 = "float64"

    @functools.cached_property
    def numpy(self) -> "np.dtype[np.generic]":
        return np.dtype(ml_dtypes.bfloat16) if self is DType.BF16 else np.dtype(self.value)

    @functools.cached_property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self in (DType.F16, DType.BF16, DType.F32, DType.F64)

    @property
    def is_int(self) -> bool:
        """Whether it is an integer type, signed or unsigned; `BOOL` is not."""
        return self in (DType.U8, DType.I8, DType.I16, DType.I32, DType.I64)

    @property
    def compute(self) -> "DType":
        """The type in which arithmetic on this element runs: float32 for 16-bit floats."""
        return DType.F32 if self in (DType.F16, DType.BF16) else self

    def __repr__(self) -> str:
        return self.value

    def __str__(self) -> str:
        return self.value

    @staticmethod
    def from_numpy(dtype: "np.dtype[np.generic]") -> "DType":
        return DType.BF16 if dtype == ml_dtypes.bfloat16 else DType(dtype.name)
