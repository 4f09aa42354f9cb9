// Weights that stream through a ring on chip, and their products with a few vectors.
#pragma once
#include "cuda/device/copy.cuh"
#include "cuda/device/ptx/sm_90a.cuh"
#include "cuda/device/reduce.cuh"

namespace mt {

// A warp's part of the worker's ring, as plan/nodes.py lays it out: `SLOTS` slots of `SLOT_BYTES`, each with a barrier on which the copies
// into it arrive. A slot belongs to one warp alone, which asks for a chunk, waits for it, reads it, and asks for another. All lanes
// have the same `taken`, chunks that were read since the launch began, and `asked`, chunks on their way. In between the two numbers
// lie in memory, as functions share no registers.
template <int SLOTS, int SLOT_BYTES, int WARPS>
struct Ring {
  static constexpr int COUNT = SLOTS;
  static constexpr int HEAD = (8 * WARPS * (SLOTS + 1) + 127) / 128 * 128;
  u32* state;
  u32 barriers, taken, asked;
  char* slots;
  u64 policy;

  // By every warp for itself, before its first ring.
  static __device__ __forceinline__ void start(char* memory) {
    const u32 warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) {
      for (int s = 0; s < SLOTS; ++s) ptx::arrival_start(ptx::shared_address(memory) + (warp * SLOTS + s) * 8);
      u32* state = reinterpret_cast<u32*>(memory + 8 * WARPS * SLOTS) + 2 * warp;
      state[0] = state[1] = 0;
    }
    ptx::arrival_fence();
    __syncwarp();
  }

  __device__ __forceinline__ explicit Ring(char* memory) {
    const u32 warp = threadIdx.x / 32;
    state = reinterpret_cast<u32*>(memory + 8 * WARPS * SLOTS) + 2 * warp;
    barriers = ptx::shared_address(memory) + warp * SLOTS * 8;
    slots = memory + HEAD + warp * (SLOTS * SLOT_BYTES);
    taken = state[0], asked = state[1];
    policy = ptx::evict_first_policy();
  }

  // The first `rows` lanes each ask for `bytes` at their own `from`.
  __device__ __forceinline__ void ask(const void* from, u32 bytes, u32 rows) {
    const u32 slot = (taken + asked++) % SLOTS, lane = threadIdx.x % 32;
    if (lane == 0) ptx::arrival_expect(barriers + slot * 8, bytes * rows);
    if (rows > 1) __syncwarp();
    if (lane < rows)
      ptx::copy_bulk(ptx::shared_address(slots) + slot * SLOT_BYTES + lane * bytes, from, bytes, barriers + slot * 8, policy);
  }

  // The chunk after the `later` oldest ones, once it is there.
  __device__ __forceinline__ const char* await(u32 later) const {
    const u32 number = taken + later, slot = number % SLOTS;
    ptx::arrival_wait(barriers + slot * 8, number / SLOTS & 1);
    return slots + slot * SLOT_BYTES;
  }

  // The slot of the oldest one is free again, once all lanes have read it.
  __device__ __forceinline__ void take() { ++taken, --asked; }

  __device__ __forceinline__ void leave() const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) state[0] = taken, state[1] = asked;
    __syncwarp();
  }
};

// sums[r][m] = the lane's columns of row r times those of vector m. The lanes take vectors of 16 bytes in turns.
template <class T, int ROWS, int M, int COLUMNS, int HELD>
__device__ __forceinline__ void gemv(float* sums, const float (&vectors)[M][HELD], const char* chunk) {
  constexpr int V = 16 / int(sizeof(T)), TURNS = HELD / V, WAYS = M == 1 ? 4 : M == 2 ? 2 : 1;
  const int lane = threadIdx.x % 32;
  const T* weights = reinterpret_cast<const T*>(chunk);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    float way[M][WAYS] = {};
#pragma unroll
    for (int j = 0; j < TURNS; ++j) {
      const int column = (j * 32 + lane) * V;
      if (COLUMNS % (32 * V) == 0 || j + 1 < TURNS || column < COLUMNS) {
        const Pack<T, V> w = load<V>(weights + r * COLUMNS + column);
#pragma unroll
        for (int v = 0; v < V; ++v)
#pragma unroll
          for (int m = 0; m < M; ++m) way[m][v % WAYS] += widen(w[v]) * vectors[m][j * V + v];
      }
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
      float total = way[m][0];
#pragma unroll
      for (int i = 1; i < WAYS; ++i) total += way[m][i];
      sums[r * M + m] = total;
    }
  }
}

// A task's chunks of a warp, two at a time so that each hides the other's latency: `first`, `step`: where the sums of the first one belong,
// those of row r and vector m at [r][PARTS][m], and of the next. ask: is given the number of a chunk from the first on.
template <class T, int ROWS, int M, int COLUMNS, int HELD, int PARTS, class Ring, class Ask>
__device__ __forceinline__ void gemv_chunks(Ring& ring, int count, const float (&vectors)[M][HELD], float* first, int step,
                                            const Ask& ask) {
  constexpr int SUMS = ROWS * M;
#pragma unroll 1
  for (int k = 0; k < count; k += 2) {
    const int here = min_of(2, count - k);
    float sums[2 * SUMS];
    const char* const chunk = ring.await(0);
    const char* const next = here == 2 ? ring.await(1) : chunk;
    gemv<T, ROWS, M, COLUMNS, HELD>(sums, vectors, chunk);
    gemv<T, ROWS, M, COLUMNS, HELD>(sums + SUMS, vectors, next);
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < here; ++i) {
      ring.take();
      ask(k + i + Ring::COUNT);
    }
    across<Sum<float>, 32, 2 * SUMS>(sums, nullptr);
    if (threadIdx.x % 32 == 0)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (i < here)
#pragma unroll
          for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int m = 0; m < M; ++m) first[(k + i) * step + r * PARTS * M + m] = sums[(i * ROWS + r) * M + m];
  }
  ring.leave();
}

// The sum over the parts of a row.
template <int PARTS, int M>
__device__ __forceinline__ float gemv_total(const float* sums) {
  float total = sums[0];
#pragma unroll
  for (int p = 1; p < PARTS; ++p) total += sums[p * M];
  return total;
}

}  // namespace mt
