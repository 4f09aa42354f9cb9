"""The functions of the device library that are its own, on the emulator."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.codegen.emulate import COMPILER, Launch, launch

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")

X = np.concatenate(
    [np.linspace(-12, 12, 20001), 10.0 ** np.arange(-40, 39), -(10.0 ** np.arange(-40, 39))]
).astype(np.float32)
EDGES = np.array([0.0, np.inf, -np.inf, np.nan], np.float32)


def each(name: str, x: NDArray[np.float32], more: str = "") -> NDArray[np.float32]:
    return each_by(f"mt_{name}_f32(x{more})", x)


def each_by(text: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """What `text` gives of each x."""
    source = f"""
#include "cuda/device/monotile.cuh"
struct Params {{ char* workspace; unsigned* sync; void* pointers[2]; }};
extern "C" __global__ void monotile_kernel(const __grid_constant__ Params p) {{
  for (int i = threadIdx.x; i < {x.size}; i += 32) {{
    const float x = ((const float*)p.pointers[0])[i];
    ((float*)p.pointers[1])[i] = {text};
  }}
}}
"""
    (got,) = launch(
        source, [x, np.empty_like(x)], Launch(1, 32, 0), late=False, seed=1, results=(1,)
    )
    return got.view(np.float32)


def test_one_plus_erf() -> None:
    want = np.array([math.erfc(-float(x)) for x in X])
    error = np.abs(each("one_plus_erf", X) - want)
    assert error.max() < 2e-7
    below = (X > -4) & (X < 0)
    assert (error[below] / want[below]).max() < 2e-5
    np.testing.assert_array_equal(each("one_plus_erf", EDGES), [1, 2, 0, np.nan])


def test_cospi() -> None:
    turns = X[np.abs(X) < 1e6].astype(np.float64)
    rest = turns - 2 * np.rint(turns / 2)
    want = np.sin(np.pi * (0.5 - np.abs(rest)))
    assert np.abs(each("cospi", turns.astype(np.float32)) - want).max() < 2e-7
    np.testing.assert_allclose(each("cospi", EDGES), [1, np.nan, np.nan, np.nan], rtol=2e-7)
    halves = np.array([0.5, 1.5, -0.5, 7.5], np.float32)
    np.testing.assert_array_equal(each("cospi", halves), np.zeros(4))


@pytest.mark.parametrize(
    "c", [6.0, 3.0, -49.0, 5.6568542, 0.1, 255.0, 1e-3, 1.9999999, 0.99999994, 1e9]
)
def test_a_quotient_by_a_literal(c: float) -> None:
    some = np.random.default_rng(0).integers(0, 1 << 32, 200_000, np.uint32).view(np.float32)
    x = np.concatenate([X, EDGES, -EDGES, some])
    with np.errstate(all="ignore"):
        want = x / np.float32(c)
    got = each("div_by", x, f", {c!r}f")
    plain = (np.minimum(np.abs(want), np.abs(x)) > 1e-30) | (want == 0)
    np.testing.assert_array_equal(got[plain].view(np.uint32), want[plain].view(np.uint32))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got[~plain], want[~plain], rtol=1.2e-7, atol=2e-45)


@pytest.mark.parametrize(
    "c", [3.0, -0.7, 1e-40, -3e-45, 1e-31, 2e-30, 7e29, 2e38, 0.0, math.inf, math.nan]
)
def test_a_quotient_by_what_divides_many(c: float) -> None:
    """Also by what has no reciprocal in single precision."""
    some = np.random.default_rng(0).integers(0, 1 << 32, 200_000, np.uint32).view(np.float32)
    x = np.concatenate([X, EDGES, -EDGES, some, np.float32([1e-44, 3e-39, 1e38]), np.float32([c])])
    with np.errstate(all="ignore"):
        want = x / np.float32(c)
    number = {math.inf: "MT_INF", 0.0: "0.f"}.get(c, "MT_INF - MT_INF" if c != c else f"{c!r}f")
    got = each_by(f"mt::Divisor({number}).under(x)", x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, rtol=1.2e-7, atol=2e-45)


def test_a_quotient() -> None:
    """Of a number by the one that has its bits, the halves the other way round."""
    x = np.random.default_rng(0).integers(0, 1 << 32, 200_000, np.uint32)
    turned = (x << np.uint32(16) | x >> np.uint32(16)).view(np.float32)
    bits = "__float_as_uint(x)"
    got = each_by(
        f"mt_div_f32(x, __uint_as_float({bits} << 16 | {bits} >> 16))", x.view(np.float32)
    )
    with np.errstate(all="ignore"):
        want = x.view(np.float32) / turned
    np.testing.assert_allclose(got, want, rtol=1.2e-7, atol=2e-45)


def test_a_root() -> None:
    some = np.random.default_rng(0).integers(0, 1 << 32, 200_000, np.uint32).view(np.float32)
    x = np.concatenate([X, EDGES, -EDGES, some, np.float32([1e-45, 3e-39, 9.0, 1e-30])])
    with np.errstate(all="ignore"):
        want = np.sqrt(x.astype(np.float64)).astype(np.float32)
    got = each("sqrt", x)
    np.testing.assert_array_equal(np.signbit(got[x == 0]), np.signbit(x[x == 0]))
    np.testing.assert_allclose(got, want, rtol=1.2e-7)


def test_logistic() -> None:
    with np.errstate(over="ignore"):
        want = 1 / (1 + np.exp(-X.astype(np.float64)))
    normal = want > 1e-37
    np.testing.assert_allclose(each("logistic", X)[normal], want[normal], rtol=4e-7)
    np.testing.assert_array_equal(each("logistic", EDGES), [0.5, 1, 0, np.nan])
