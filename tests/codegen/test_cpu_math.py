"""The functions of device/cpu/: accuracy against float64, special values, 16-bit floats against ml_dtypes."""

import ctypes
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from monotile.config import Options
from monotile.targets.cpu.build import build, load
from monotile.targets.cpu.target import cpu_target

FUNCTIONS: dict[
    str, tuple[Callable[[Any], Any], float]
] = {  # and the largest error, in units in the last place
    "exp": (np.exp, 1.1),
    "exp2": (np.exp2, 1.1),
    "expm1": (np.expm1, 1.6),
    "log": (np.log, 1.0),
    "log1p": (np.log1p, 1.6),
    "tanh": (np.tanh, 1.5),
    "erf": (np.vectorize(math.erf), 1.2),
    "acos": (np.arccos, 1.0),
    "power_9": (lambda x: x**9.0, 0.51),
    "power_minus_5": (lambda x: x**-5.0, 0.51),
    "cospi": (lambda x: np.sin(np.pi * (0.5 - np.abs(x - 2 * np.rint(x / 2)))), 3.0),
}
ROUNDING = ("f16", "bf16")
SOURCE = "\n".join(
    [
        '#include "cpu/device/math.h"',
        "MT_INLINE float mt_power_9_f32(float x) { return mt_pow_f32(x, 9.0f); }",
        "MT_INLINE float mt_power_minus_5_f32(float x) { return mt_pow_f32(x, -5.0f); }",
        "#define EACH(N) void each_##N(float* y, const float* x, int64_t n) \\",
        "  { for (int64_t i = 0; i < n; ++i) y[i] = mt_##N(x[i]); }",
        *(f"EACH({name}_f32)" for name in FUNCTIONS),
        *(f"EACH(round_{kind})" for kind in ROUNDING),
        "void odd_f16(float* y, const double* x, int64_t n)",
        "  { for (int64_t i = 0; i < n; ++i) y[i] = mt_round_f16(mt_odd_f32(x[i])); }",
        "int32_t floordiv(int32_t a, int32_t b) { return mt_floordiv_i32(a, b); }",
        "int32_t mod(int32_t a, int32_t b) { return mt_mod_i32(a, b); }",
        "int32_t truncdiv(int32_t a, int32_t b) { return mt_truncdiv_i32(a, b); }",
        "int32_t rem(int32_t a, int32_t b) { return mt_rem_i32(a, b); }",
    ]
)


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return load(build(SOURCE, cpu_target(workers=1), Options(cache=False)).image)


def floats(step: int) -> NDArray[np.float32]:
    """Floats of every magnitude: every `step`-th bit pattern."""
    return np.arange(0, 1 << 32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


def apply(f: Any, x: NDArray[Any]) -> NDArray[np.float32]:
    y = np.empty(x.shape, np.float32)
    f(ctypes.c_void_p(y.ctypes.data), ctypes.c_void_p(x.ctypes.data), ctypes.c_int64(x.size))
    return y


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, library: ctypes.CDLL) -> None:
    reference, limit = FUNCTIONS[name]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 88.8, -103.5, -150.0, 1.0, -1.0]
    x = np.concatenate([np.array(special, np.float32), floats(40009)])
    got = apply(library[f"each_{name}_f32"], x)
    with np.errstate(all="ignore"):
        want = np.asarray(reference(x.astype(np.float64)), np.float64)
        rounded = want.astype(np.float32)
        unit = np.nextafter(np.abs(rounded), np.float32(np.inf)).astype(np.float64) - np.abs(
            rounded
        )
        error = np.abs(got.astype(np.float64) - want) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    worst = np.where(same, 0.0, np.nan_to_num(error, nan=1e9))
    assert worst.max() <= limit, (x[worst.argmax()], got[worst.argmax()], want[worst.argmax()])
    zero = got == 0
    assert np.array_equal(np.signbit(got[zero]), np.signbit(rounded[zero]))


@pytest.mark.parametrize("kind", ROUNDING)
def test_sixteen_bit_floats(kind: str, library: ctypes.CDLL) -> None:
    small = np.dtype(np.float16 if kind == "f16" else ml_dtypes.bfloat16)
    edges = np.arange(1 << 16, dtype=np.uint16).view(small)
    with np.errstate(all="ignore"):
        wide = edges.astype(np.float32)
        ties = wide[:-1] / 2 + wide[1:] / 2
        x = np.concatenate([wide, ties, np.nextafter(ties, np.float32(0)), floats(40009)])
        want = x.astype(small).astype(np.float32)
    np.testing.assert_array_equal(apply(library[f"each_round_{kind}"], x), want)


def test_a_double_is_rounded_once(library: ctypes.CDLL) -> None:
    tie = 1.0 + 2.0**-11
    x = np.array(
        [tie, tie + 2.0**-40, tie - 2.0**-40, -tie - 2.0**-40, 1e300, np.nan, 1e-8 + 1e-20]
    )
    with np.errstate(all="ignore"):
        want = x.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(apply(library.odd_f16, x), want)


def test_integer_division(library: ctypes.CDLL) -> None:
    lowest = -(1 << 31)
    for a in (-7, -6, 0, 6, 7, lowest):
        for b in (-3, -1, 1, 3, 0):
            wrap = a == lowest and b == -1
            quotient = lowest if wrap else 0 if b == 0 else math.trunc(a / b)
            assert library.truncdiv(a, b) == quotient
            assert library.rem(a, b) == (0 if b == 0 or wrap else a - quotient * b)
            assert library.floordiv(a, b) == (0 if b == 0 else lowest if wrap else a // b)
            assert library.mod(a, b) == (0 if b == 0 else a % b)
