"""What each format means, element by element in numpy: nothing of the package is used."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
# bitsandbytes, csrc/kernels.cu: dDequantizeNF4.
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu)


def array(tensor: Tensor) -> Array:
    """Floats of 8 bits as those of ml_dtypes, bfloat16 as float32."""
    if tensor.dtype == torch.bfloat16:
        return tensor.float().numpy()
    if tensor.dtype in FLOAT8:
        own = np.dtype(getattr(ml_dtypes, str(tensor.dtype).removeprefix("torch.")))
        return tensor.view(torch.uint8).numpy().view(own)
    return tensor.numpy()


def fields(row: Array, bits: int) -> list[int]:
    """The codes of a row of bytes, little end first."""
    return [(int(byte) >> at) % (1 << bits) for byte in row for at in range(0, 8, bits)]


def rounded(x: Array, dtype: torch.dtype) -> Array:
    """To the nearest of dtype, as float64."""
    kinds = {
        torch.float32: np.dtype(np.float32),
        torch.float16: np.dtype(np.float16),
        torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    }
    with np.errstate(over="ignore"):
        return x.astype(kinds[dtype]).astype(np.float64)


def decode(name: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Array:
    """float64 [n, k], each value one of dtype."""
    parts = {key: array(t) for key, t in tensors.items()}
    if ":" in name:
        return sparse(parts, int(name.split(":")[1]))
    codes = parts["codes"]
    if name.startswith("int"):
        bits = int(name[3:])
        words = codes.astype(int) if bits == 8 else np.array([fields(row, bits) for row in codes])
        middle = 0 if codes.dtype == np.int8 else 1 << (bits - 1)
        zero = parts["zero"].astype(int) if "zero" in parts else middle
        if bits == 1:
            return rounded(times(2.0 * words - 1, parts["scale"]), dtype)
        steps = words - np.repeat(
            np.broadcast_to(zero, parts["scale"].shape),
            words.shape[1] // parts["scale"].shape[1],
            1,
        )
        return rounded(times(steps, parts["scale"]), dtype)
    if name == "nf4":
        values = np.array([[np.float32(NF4[c]) for c in fields(row, 4)] for row in codes])
        return rounded(rounded(times(values, parts["absmax"]), torch.float32), dtype)
    if name.startswith("fp8"):
        return rounded(times(codes.astype(np.float64), parts["scale"]), dtype)
    if name == "mxfp4":
        words = np.array([fields(row, 4) for row in codes], np.uint8)
        codes = words.view(ml_dtypes.float4_e2m1fn)
    powers = parts["exponents"].view(ml_dtypes.float8_e8m0fnu)
    exact = times(codes.astype(np.float64), powers.astype(np.float64))
    return rounded(rounded(exact, torch.float32), dtype)


def times(values: Array, scale: Array) -> Array:
    """Exact in float64: of at most 24 bits each."""
    wide = scale.astype(np.float64)
    return values.astype(np.float64) * np.repeat(wide, values.shape[1] // wide.shape[1], 1)


def sparse(parts: Mapping[str, Array], of: int) -> Array:
    n, groups, kept = parts["values"].shape
    positions = parts["positions"]
    if positions.ndim == 2:  # in bits, as many as a byte has room for
        each = 8 * positions.shape[1] // (groups * kept)
        positions = np.array([fields(row, each) for row in positions]).reshape(n, groups, kept)
    found = np.zeros((n, groups * of))
    for (row, group, i), value in np.ndenumerate(parts["values"]):
        found[row, group * of + int(positions[row, group, i])] = value
    return found
