// The sum of a row and the sum of the squared deviations from its mean, in one pass (Chan, Golub and LeVeque, 1979). Two parts of
// equal length n combine as s = s1 + s2, q = q1 + q2 + (s1 - s2)^2 / 2n. This is as exact as two passes, as no large squares are
// subtracted from each other.
#pragma once
#include "cuda/device/reduce.cuh"

namespace mt {

struct Moments {
  float sum, squares;
};

// The moments of a row per group of LANES threads (a power of two). x: a thread's values of the row, in vectors of VECTOR. Only the
// first LAST threads, whole warps, have values in the last vector. All lanes get the result. All threads of the warp must call it,
// and all of the block if LANES > 32. scratch: 8 bytes per warp, unused since the last barrier of the block.
template <int LANES, int VECTOR, int LAST, int COUNT>
__device__ __forceinline__ Moments moments(const float (&x)[COUNT], char* scratch) {
  static_assert(LAST == LANES || (LAST < LANES && LAST % 32 == 0), "All lanes of a warp have the same number of values.");
  constexpr int SHORT = COUNT - VECTOR;
  const int lane = threadIdx.x % LANES;
  const bool whole = LAST == LANES || lane < LAST;
  // The reciprocal of the number of values of `lanes` lanes of this warp.
  auto share = [&](int lanes) { return whole ? 1.0f / float(COUNT * lanes) : SHORT > 0 ? 1.0f / float(SHORT * lanes) : 0.0f; };

  Moments m{0, 0};
#pragma unroll
  for (int i = 0; i < COUNT; ++i) m.sum += x[i];  // zeros where there are none
  const float mean = m.sum * share(1);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const float deviation = x[i] - mean;
    if (i < SHORT || whole) m.squares += deviation * deviation;
  }
#pragma unroll
  for (int mask = 1; mask < LANES && mask < 32; mask *= 2) {
    const Moments other = shuffle_xor(m, mask);
    const float difference = m.sum - other.sum;
    m.squares = difference * (difference * share(2 * mask)) + (m.squares + other.squares);
    m.sum += other.sum;
  }
  if constexpr (LANES > 32) {
    constexpr int WARPS = LANES / 32;
    auto* parts = reinterpret_cast<Moments*>(scratch);
    const int warp = threadIdx.x / 32, first = warp / WARPS * WARPS;
    if (threadIdx.x % 32 == 0) parts[warp] = m;
    block_barrier();
    Moments part[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; ++w) part[w] = parts[first + w];
    m = part[0];
#pragma unroll
    for (int w = 1; w < WARPS; ++w) m.sum += part[w].sum, m.squares += part[w].squares;
    constexpr int ALL = SHORT * LANES + VECTOR * LAST;
    const float mean = m.sum * (1.0f / float(ALL));
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const int values = 32 * (w * 32 < LAST ? COUNT : SHORT);
      if (values == 0) continue;
      const float deviation = part[w].sum * (1.0f / float(values)) - mean;
      m.squares += float(values) * deviation * deviation;
    }
  }
  return m;
}

// The same as a combiner. A part knows how many terms it has; the sum is not their mean times that, so that infinite terms have one.
struct SumAndSquares {
  struct Part {
    float count, sum, mean, squares;
  };
  static __device__ __forceinline__ Part identity() { return {0, 0, 0, 0}; }
  static __device__ __forceinline__ Part combine(const Part& a, const Part& b) {
    const float count = a.count + b.count, share = count > 0 ? b.count * ptx::reciprocal_fast(count) : 0.0f;
    const float difference = b.mean - a.mean;
    return {count, a.sum + b.sum, a.mean + difference * share, a.squares + b.squares + difference * difference * (a.count * share)};
  }
  // What one more term is of all.
  static __device__ __forceinline__ float share(const Part& part) { return ptx::reciprocal_fast(part.count + 1); }
  // One more term, of which `share` was asked.
  static __device__ __forceinline__ void add(Part& part, float x, float share) {
    const float difference = x - part.mean;
    part.count += 1;
    part.sum += x;
    part.mean += difference * share;
    part.squares += difference * (x - part.mean);
  }
  template <int COUNT>
  static __device__ __forceinline__ void add(Part& part, const float (&x)[COUNT]) {
    Part own{COUNT, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < COUNT; ++i) own.sum += x[i];
    own.mean = own.sum * (1.0f / COUNT);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) own.squares += (x[i] - own.mean) * (x[i] - own.mean);
    part = combine(part, own);
  }
};

}  // namespace mt
