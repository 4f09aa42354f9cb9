// Combiners, and reductions of partial results over LANES neighbouring threads.
#pragma once
#include "cuda/device/barrier.cuh"
#include "cuda/device/math.cuh"

namespace mt {

template <class T>
__device__ __forceinline__ T larger(T a, T b) { return a > b ? a : b; }
template <class T>
__device__ __forceinline__ T smaller(T a, T b) { return a < b ? a : b; }
__device__ __forceinline__ float larger(float a, float b) { return mt_max_f32(a, b); }
__device__ __forceinline__ float smaller(float a, float b) { return mt_min_f32(a, b); }
__device__ __forceinline__ double larger(double a, double b) { return mt_max_f64(a, b); }
__device__ __forceinline__ double smaller(double a, double b) { return mt_min_f64(a, b); }

// The smallest and largest value of a type; the infinities of floats.
template <class T>
struct Limits {
  static constexpr bool SIGNED = T(-1) < T(0);
  static __device__ __forceinline__ T highest() {
    return SIGNED ? T((u64(1) << (sizeof(T) * 8 - 1)) - 1) : T(~u64(0));
  }
  static __device__ __forceinline__ T lowest() { return SIGNED ? T(-highest() - 1) : T(0); }
};
template <>
struct Limits<bool> {
  static __device__ __forceinline__ bool highest() { return true; }
  static __device__ __forceinline__ bool lowest() { return false; }
};
template <>
struct Limits<float> {
  static __device__ __forceinline__ float highest() { return MT_INF; }
  static __device__ __forceinline__ float lowest() { return -MT_INF; }
};
template <>
struct Limits<double> {
  static __device__ __forceinline__ double highest() { return double(MT_INF); }
  static __device__ __forceinline__ double lowest() { return -double(MT_INF); }
};

// A combiner: its identity, and the combination of two partial results. All are associative and commutative, but for rounding.
template <class T>
struct Sum {
  using Part = T;
  static __device__ __forceinline__ T identity() { return T(0); }
  static __device__ __forceinline__ T combine(T a, T b) { return T(a + b); }
};
template <class T>
struct Prod {
  using Part = T;
  static __device__ __forceinline__ T identity() { return T(1); }
  static __device__ __forceinline__ T combine(T a, T b) { return T(a * b); }
};
template <class T>
struct Max {
  using Part = T;
  static __device__ __forceinline__ T identity() { return Limits<T>::lowest(); }
  static __device__ __forceinline__ T combine(T a, T b) { return larger(a, b); }
};
template <class T>
struct Min {
  using Part = T;
  static __device__ __forceinline__ T identity() { return Limits<T>::highest(); }
  static __device__ __forceinline__ T combine(T a, T b) { return smaller(a, b); }
};
template <class T>
struct Any {
  using Part = T;
  static __device__ __forceinline__ T identity() { return T(0); }
  static __device__ __forceinline__ T combine(T a, T b) { return T(a != 0 || b != 0); }
};
template <class T>
struct All {
  using Part = T;
  static __device__ __forceinline__ T identity() { return T(1); }
  static __device__ __forceinline__ T combine(T a, T b) { return T(a != 0 && b != 0); }
};

// A value and its row-major position. Position -1: no value.
template <class T>
struct Positioned {
  T value;
  int position;
};
// The position of the extreme value, the first of equal ones. NaN is more extreme than any number.
template <class T, bool LARGEST>
struct Extreme {
  using Part = Positioned<T>;
  static __device__ __forceinline__ Part identity() { return {T(0), -1}; }
  static __device__ __forceinline__ Part combine(Part a, Part b) {
    if (a.position < 0) return b;
    if (b.position < 0) return a;
    bool nan_a = a.value != a.value, nan_b = b.value != b.value;
    bool tie = (nan_a && nan_b) || a.value == b.value;
    bool first = nan_a != nan_b ? nan_a : tie ? a.position < b.position
                                              : LARGEST ? a.value > b.value : a.value < b.value;
    return first ? a : b;
  }
};
template <class T>
using ArgMax = Extreme<T, true>;
template <class T>
using ArgMin = Extreme<T, false>;

template <class P>
__device__ __forceinline__ P shuffle_xor(P x, int mask) {
  if constexpr (sizeof(P) < 4) {
    u32 word = 0;
    *reinterpret_cast<P*>(&word) = x;
    word = __shfl_xor_sync(0xffffffffu, word, mask);
    return *reinterpret_cast<P*>(&word);
  } else {
    static_assert(sizeof(P) % 4 == 0, "A part has at most 16 bits or is a number of whole words.");
    P y;
#pragma unroll
    for (int i = 0; i < int(sizeof(P)) / 4; ++i)
      reinterpret_cast<u32*>(&y)[i] =
          __shfl_xor_sync(0xffffffffu, reinterpret_cast<const u32*>(&x)[i], mask);
    return y;
  }
}

// An all-reduce of COUNT parts in every group of LANES threads (a power of two). All threads of the warp must call it, and all of
// the block if LANES > 32. scratch: COUNT * sizeof(Part) bytes per warp. FRESH: it is unused since the last barrier of the block.
template <class Op, int LANES, int COUNT, bool FRESH = false>
__device__ __forceinline__ void across(typename Op::Part (&part)[COUNT], char* scratch) {
#pragma unroll
  for (int mask = 1; mask < LANES && mask < 32; mask *= 2)
#pragma unroll
    for (int i = 0; i < COUNT; ++i) part[i] = Op::combine(part[i], shuffle_xor(part[i], mask));
  if constexpr (LANES > 32) {
    constexpr int WARPS = LANES / 32;
    auto* held = reinterpret_cast<typename Op::Part*>(scratch);
    int warp = threadIdx.x / 32, first = warp / WARPS * WARPS;
    if constexpr (!FRESH) block_barrier();
    if (threadIdx.x % 32 == 0)
#pragma unroll
      for (int i = 0; i < COUNT; ++i) held[warp * COUNT + i] = part[i];
    block_barrier();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      part[i] = held[first * COUNT + i];
#pragma unroll
      for (int w = 1; w < WARPS; ++w) part[i] = Op::combine(part[i], held[(first + w) * COUNT + i]);
    }
  }
}

// A reduction of columns: combines the COUNT parts of threads whose numbers are equal modulo ACROSS (a power of two, at most 32),
// in a block of THREADS. Thread i < ACROSS * COUNT gets result i, in the order of the columns; the other threads get nothing. All
// threads of the block must call it. scratch: ACROSS * COUNT * sizeof(Part) bytes per warp.
template <class Op, int ACROSS, int THREADS, int COUNT>
__device__ __forceinline__ typename Op::Part across_columns(typename Op::Part (&part)[COUNT], char* scratch) {
  static_assert(ACROSS <= 32 && ACROSS * COUNT <= THREADS, "Every part needs a thread of its own.");
#pragma unroll
  for (int mask = ACROSS; mask < 32; mask *= 2)
#pragma unroll
    for (int i = 0; i < COUNT; ++i) part[i] = Op::combine(part[i], shuffle_xor(part[i], mask));
  auto* held = reinterpret_cast<typename Op::Part*>(scratch);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  block_barrier();
  if (lane < ACROSS)
#pragma unroll
    for (int i = 0; i < COUNT; ++i) held[(warp * ACROSS + lane) * COUNT + i] = part[i];
  block_barrier();
  typename Op::Part all = Op::identity();
  if (threadIdx.x < ACROSS * COUNT) {
#pragma unroll
    for (int w = 0; w < THREADS / 32; ++w) all = Op::combine(all, held[w * (ACROSS * COUNT) + threadIdx.x]);
  }
  return all;
}

// The steps of `across_spread`. The bounds of each are known at compile time, so that `held` stays in registers.
template <class Op, int HALF, int FULL>
__device__ __forceinline__ void halve(typename Op::Part (&held)[FULL], int lane) {
  if constexpr (HALF > 0) {
    bool upper = (lane & HALF) != 0;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      typename Op::Part low = held[i], high = held[i + HALF];
      held[i] = Op::combine(upper ? high : low, shuffle_xor(upper ? low : high, HALF));
    }
    halve<Op, HALF / 2>(held, lane);
  }
}

// A reduce-scatter of 1 < COUNT <= LANES parts: lane i of each group (and of each of its warps) gets result i only. Each step sends
// half of a lane's parts away, so that COUNT parts take about COUNT shuffles.
template <class Op, int LANES, int COUNT>
__device__ __forceinline__ typename Op::Part across_spread(const typename Op::Part (&part)[COUNT], char* scratch) {
  using Part = typename Op::Part;
  constexpr int FULL = COUNT > 16 ? 32 : COUNT > 8 ? 16 : COUNT > 4 ? 8 : COUNT > 2 ? 4 : 2;
  static_assert(COUNT <= 32 && FULL <= LANES, "Every part needs a lane of its own.");
  int lane = threadIdx.x % 32;
  Part held[FULL];
#pragma unroll
  for (int i = 0; i < FULL; ++i) held[i] = i < COUNT ? part[i < COUNT ? i : 0] : Op::identity();
  halve<Op, FULL / 2>(held, lane);
#pragma unroll
  for (int mask = FULL; mask < LANES && mask < 32; mask *= 2)
    held[0] = Op::combine(held[0], shuffle_xor(held[0], mask));
  if constexpr (LANES > 32) {
    constexpr int WARPS = LANES / 32;
    Part* sums = reinterpret_cast<Part*>(scratch);
    int warp = threadIdx.x / 32, first = warp / WARPS * WARPS, mine = lane % FULL;
    block_barrier();
    if (lane < FULL) sums[warp * FULL + lane] = held[0];
    block_barrier();
    held[0] = sums[first * FULL + mine];
#pragma unroll
    for (int w = 1; w < WARPS; ++w) held[0] = Op::combine(held[0], sums[(first + w) * FULL + mine]);
  }
  return held[0];
}

// A reduce-scatter of more parts than lanes: lane i of each group gets results i, i + LANES, ... as its first parts. Each step
// gives one part of a pair to either lane of a pair of lanes. The order of combination is that of `across`, and so is the result.
template <class Op, int LANES, int MASK = 1, int LEFT = 0, int COUNT>
__device__ __forceinline__ void across_dealt(typename Op::Part (&part)[COUNT]) {
  static_assert(LANES <= 32, "The lanes of a group must belong to one warp.");
  if constexpr (MASK < LANES) {
    constexpr int FULL = MASK == 1 ? COUNT : LEFT, HALF = ceil_div(FULL, 2);
    bool upper = (threadIdx.x & MASK) != 0;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      typename Op::Part low = part[2 * i], high = 2 * i + 1 < FULL ? part[2 * i + 1 < FULL ? 2 * i + 1 : 0] : Op::identity();
      part[i] = Op::combine(upper ? high : low, shuffle_xor(upper ? low : high, MASK));
    }
    across_dealt<Op, LANES, MASK * 2, HALF>(part);
  }
}

}  // namespace mt
