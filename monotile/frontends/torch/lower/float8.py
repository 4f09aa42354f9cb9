"""Casts to 8-bit floats, as in the installed PyTorch."""

import functools

import torch

from monotile.frontends.torch.lower.scalar import maximum, minimum
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, cast

LARGEST = 448.0  # of float8_e4m3fn


@functools.cache
def saturates() -> bool:
    """Whether a number too large for float8_e4m3fn becomes the largest one, as from PyTorch 2.13 on, instead of NaN."""
    return bool(torch.tensor(2 * LARGEST).to(torch.float8_e4m3fn).float() == LARGEST)


def encoded(x: Expr, dtype: DType) -> Expr:
    """`x` cast to `dtype`."""
    if dtype is DType.F8E4M3 and x.dtype not in (dtype, DType.BOOL) and saturates():
        wide = cast(x, x.dtype.compute if x.dtype.is_float else DType.F32)
        x = maximum(minimum(wide, LARGEST), -LARGEST)
    return cast(x, dtype)
