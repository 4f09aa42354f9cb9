// The sum of a row and that of the squared distances from its mean, in one pass: parts of equal length n give both of the two
// together as s = s1 + s2, q = q1 + q2 + (s1 - s2)^2 / 2n (Chan, Golub and LeVeque, 1979). As exact as two passes: no large
// squares are subtracted from each other.
#pragma once
#include "cuda/device/reduce.cuh"

namespace mt {

struct Moments {
  float sum, squares;
};

// Of the row of each group of LANES threads (a power of two), of which a thread has `x`, vectors of VECTOR values, in the last of
// them the first LAST threads alone: whole warps. All lanes get the same. All threads of the warp, and of the block where
// LANES > 32, must call it. `scratch`: 8 bytes a warp, which nobody has used since the last barrier of the block.
template <int LANES, int VECTOR, int LAST, int COUNT>
__device__ __forceinline__ Moments moments(const float (&x)[COUNT], char* scratch) {
  static_assert(LAST == LANES || (LAST < LANES && LAST % 32 == 0), "the lanes of a warp have equally many values");
  constexpr int SHORT = COUNT - VECTOR;
  const int lane = threadIdx.x % LANES;
  const bool whole = LAST == LANES || lane < LAST;
  // 1 / the values of `lanes` lanes of this warp.
  auto share = [&](int lanes) { return whole ? 1.0f / float(COUNT * lanes) : SHORT > 0 ? 1.0f / float(SHORT * lanes) : 0.0f; };

  Moments m{0, 0};
#pragma unroll
  for (int i = 0; i < COUNT; ++i) m.sum += x[i];  // zeros where there are none
  const float mean = m.sum * share(1);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const float away = x[i] - mean;
    if (i < SHORT || whole) m.squares += away * away;
  }
#pragma unroll
  for (int mask = 1; mask < LANES && mask < 32; mask *= 2) {
    const Moments other = shuffle_xor(m, mask);
    const float apart = m.sum - other.sum;
    m.squares = apart * (apart * share(2 * mask)) + (m.squares + other.squares);
    m.sum += other.sum;
  }
  if constexpr (LANES > 32) {
    constexpr int WARPS = LANES / 32;
    auto* held = reinterpret_cast<Moments*>(scratch);
    const int warp = threadIdx.x / 32, first = warp / WARPS * WARPS;
    if (threadIdx.x % 32 == 0) held[warp] = m;
    block_barrier();
    Moments part[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; ++w) part[w] = held[first + w];
    m = part[0];
#pragma unroll
    for (int w = 1; w < WARPS; ++w) m.sum += part[w].sum, m.squares += part[w].squares;
    constexpr int ALL = SHORT * LANES + VECTOR * LAST;
    const float mean = m.sum * (1.0f / float(ALL));
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const int values = 32 * (w * 32 < LAST ? COUNT : SHORT);
      if (values == 0) continue;
      const float away = part[w].sum * (1.0f / float(values)) - mean;
      m.squares += float(values) * away * away;
    }
  }
  return m;
}

}  // namespace mt
