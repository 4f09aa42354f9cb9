"""What lanes of a group combine, on the emulator: to the bit the same however the results are shared out."""

import numpy as np
import pytest

from tests.codegen.emulate import COMPILER, Launch, launch

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")
CASES = ((2, 3), (2, 8), (4, 5), (4, 32), (8, 13), (8, 28), (16, 17), (16, 31))  # lanes, parts
THREADS = 64


def case(lanes: int, count: int, at: int) -> str:
    return f"""  {{
    float all[{count}], mine[{count}];
    for (int i = 0; i < {count}; ++i) all[i] = mine[i] = x[threadIdx.x * 32 + i];
    mt::across<mt::Sum<float>, {lanes}, {count}>(all, nullptr);
    mt::across_dealt<mt::Sum<float>, {lanes}>(mine);
    const int lane = threadIdx.x % {lanes};
    for (int i = 0; i < {count}; ++i)
      if (i % {lanes} == lane) {{
        y[{at} + threadIdx.x / {lanes} * {count} + i] = all[i];
        z[{at} + threadIdx.x / {lanes} * {count} + i] = mine[i / {lanes}];
      }}
  }}
"""


def test_dealt_sums_are_those_that_every_lane_gets() -> None:
    body, size = "", 0
    for lanes, count in CASES:
        body += case(lanes, count, size)
        size += THREADS // lanes * count
    text = f"""
#include "cuda/device/monotile.cuh"
struct Params {{ char* workspace; unsigned* sync; void* pointers[3]; }};
extern "C" __global__ void monotile_kernel(const __grid_constant__ Params p) {{
  auto x = (const float*)p.pointers[0];
  auto y = (float*)p.pointers[1];
  auto z = (float*)p.pointers[2];
{body}}}
"""
    x = np.random.default_rng(0).standard_normal((THREADS, 32)).astype(np.float32)
    out = [np.zeros(size, np.float32), np.ones(size, np.float32)]
    got = launch(text, [x, *out], Launch(1, THREADS, 1024), late=False, seed=0, results=(1, 2))
    y, z = (r.view(np.float32) for r in got)
    np.testing.assert_array_equal(y, z)
    first, lanes = y[: THREADS // 2 * 3].reshape(-1, 3), 2
    want = x[:, :3].reshape(-1, lanes, 3).sum(1)
    np.testing.assert_allclose(first, want, rtol=1e-6, atol=1e-6)
