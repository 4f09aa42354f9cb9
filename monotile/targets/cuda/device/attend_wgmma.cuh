// Attention by wgmma (FlashAttention-3, Shah et al., 2024). Each warp has 16 rows, and a slice of whole warpgroups shares its chunks.
//
// While a chunk's scores become powers, the values of the chunk before it are added. So stage t of the ring holds what is read
// together: the keys of chunk t and the values of chunk t - 1. Ping-pong: the two warpgroups use the tensor cores alternately, so
// that one computes powers while the other's products go on. Whisper's encoder of 1500 keys takes 19.7 us on an H100 so, and 21.6
// us without.
#pragma once
#include "cuda/device/attend_supply.cuh"

namespace mt {

// Begins the products of a warpgroup's rows and a chunk's keys.
template <class S>
__device__ __forceinline__ void begin_scores(typename S::Scores::Accumulator& scores, u32 query, u32 keys) {
#pragma unroll
  for (int k = 0; k < S::FEATURES; k += 16) {
    constexpr int TN = S::CHUNK / 8;
    u64 a = ptx::panel_descriptor(query, k / 64 * S::QueryPanel::BYTES + k % 64 * 2);
    u64 b = ptx::panel_descriptor(keys, k / 64 * S::KeyPanel::BYTES + k % 64 * 2);
    if (k == 0)
      ptx::wgmma<typename S::T, typename S::T, TN, true, false>(scores.c[0], a, b);
    else
      ptx::wgmma<typename S::T, typename S::T, TN, true>(scores.c[0], a, b);
  }
}

// Begins to add the values of a chunk, weighted by its powers.
template <class S>
__device__ __forceinline__ void begin_sums(OnlineSoftmax<S>& softmax, const u32 (&powers)[S::CHUNK / 16][4], u32 values) {
  constexpr int WHOLE = S::COLUMNS / 64, LEFT = S::COLUMNS % 64 / 8;  // panels; columns of the last one, in eights
#pragma unroll
  for (int k = 0; k < S::CHUNK; k += 16) {
    auto panel = [&](int p) { return ptx::panel_descriptor(values, p * S::ValuePanel::BYTES + k * 128); };
#pragma unroll
    for (int p = 0; p < WHOLE; ++p)
      ptx::wgmma<typename S::T>(reinterpret_cast<float(&)[8][4]>(softmax.sums[0][p * 8]), powers[k / 16], panel(p));
    if constexpr (LEFT > 0)
      ptx::wgmma<typename S::T>(reinterpret_cast<float(&)[LEFT][4]>(softmax.sums[0][WHOLE * 8]), powers[k / 16], panel(WHOLE));
  }
}

// The two warpgroups of a block, and the named barriers by which they wait for each other.
template <class S>
struct PingPong {
  static_assert(S::WARPS == 8, "Attention by wgmma needs two warpgroups: 8 warps.");
  static constexpr int THREADS = 256;
  // Whether both read one ring, each filling a half of every stage. Then a stage is refilled one chunk later than it could be, and
  // a half is released as soon as it is copied. So neither warpgroup waits for the other at the end of the same chunk.
  static constexpr bool SHARED_RING = S::SLICES == 1;
  static constexpr int FILLED = S::DEPTH - (SHARED_RING ? 2 : 1);  // stages that are filled ahead
  static_assert(FILLED > 0, "The pipeline needs a stage that is read and one that is filled ahead.");
  // How often each uses the tensor cores: as often where it has a chunk less (see the end of `stream_warpgroups`).
  int iterations;
  int own, other;

  // Warpgroup 0 has the tensor cores first.
  __device__ __forceinline__ explicit PingPong(const ThreadRole<S>& role)
      : iterations(role.iterations), own(role.warp / 4), other(1 - own) {
    if (own == 1) ptx::barrier_arrive<THREADS>(TENSOR_CORES + other);
  }
  // Before the products of a chunk begin; and after those of chunk `t` have begun.
  __device__ __forceinline__ void acquire_tensor_cores() const { ptx::barrier_some<THREADS>(TENSOR_CORES + own); }
  __device__ __forceinline__ void release_tensor_cores(int t) const {
    if (own == 0 || t + 1 < iterations) ptx::barrier_arrive<THREADS>(TENSOR_CORES + other);
  }
  // This warpgroup's half of the stage after chunk `t` is copied, and it no longer reads the chunk before `t`; wait for the same of
  // the other.
  __device__ __forceinline__ void release_half(int t) const { ptx::barrier_arrive<THREADS>(HALF_STAGE + 2 * own + (t & 1)); }
  __device__ __forceinline__ void await_half(int t) const { ptx::barrier_some<THREADS>(HALF_STAGE + 2 * other + (t & 1)); }

 private:
  static constexpr int TENSOR_CORES = 3, HALF_STAGE = 5;  // named barriers; 1 and 2 are the slices'
};

// Processes all keys of this slice for rows [m0, m1).
template <class S, class Await, class Query, class Key, class Value, class Score>
__device__ __forceinline__ void stream_warpgroups(OnlineSoftmax<S>& softmax, const ThreadRole<S>& role, char* shared, int m0, int m1,
                                              const Await& await, const Query& query, const Key& key,
                                              const Value& value, const Score& score) {
  static_assert(S::KeyPanel::BYTES % 1024 == 0 && S::ValuePanel::BYTES % 1024 == 0,
                "Kernel::WGMMA needs panels of a multiple of 1024 bytes.");
  constexpr int END = S::DEPTH * S::STAGE_BYTES;
  char* ring = role.ring(shared);
  int to = 0, from = 0;  // stages of the ring: next to fill, next to use
  Supplies<S, Query, Key, Value> supplies(role, role.thread, m0, m1, query, key, value);
  auto begin = [&](int t) {
    constexpr int DISTANCE = S::SLICES * S::CHUNK;
    if (t < role.count) {
      supplies.keys.begin(ring + to);
      supplies.keys.advance(DISTANCE, 0);
    }
    if (0 < t && t <= role.count) {
      supplies.values.begin(ring + to + S::KEY_BYTES);
      supplies.values.advance(0, DISTANCE);
    }
    ptx::copy_async_commit();
    to = to + S::STAGE_BYTES == END ? 0 : to + S::STAGE_BYTES;
  };
  auto panel = [&](int offset) { return ptx::panel_address(ptx::shared_address(ring) + offset); };
  constexpr int FILLED = PingPong<S>::FILLED;
  const PingPong<S> ping_pong(role);
  await();
  supplies.queries.begin(shared);
#pragma unroll 1
  for (int t = 0; t < FILLED; ++t) begin(t);
  ptx::copy_async_wait<FILLED - 1>();
  ptx::fence_async();
  block_barrier();  // the queries are in, and the first stage

  const u32 rows = ptx::panel_address(ptx::shared_address(shared) + role.row / 64 * 64 * 128);
  typename S::Scores::Accumulator scores;
  u32 powers[S::CHUNK / 16][4] = {};
#pragma unroll 1
  for (int t = 0; t < role.count; ++t) {
    ping_pong.acquire_tensor_cores();
    ptx::wgmma_fence();
    begin_scores<S>(scores, rows, panel(from));
    ptx::wgmma_commit();
    begin(t + FILLED);
    // Each branch has its own wait. With one wait for both, ptxas adds a group of products where the branches meet (C7519), or
    // serialises all products (C7514).
    if (t > 0) {
      ptx::wgmma_fence();
      begin_sums(softmax, powers, panel(from + S::KEY_BYTES));
      ptx::wgmma_commit();
      ping_pong.release_tensor_cores(t);
      ptx::wgmma_wait<1>();
    } else {
      ping_pong.release_tensor_cores(t);
      ptx::wgmma_wait();
    }
    if constexpr (PingPong<S>::SHARED_RING) {
      ptx::copy_async_wait<FILLED - 1>();
      ptx::fence_async();
      ping_pong.release_half(t);
    }
    ptx::register_fence(scores.c[0]);
    to_scores<S>(scores, score, m0 + role.row, m1, role.first(t), role.lane);
    bool raised = softmax.update_maximum(scores, factor_of(score));
    softmax.exponentiate(scores, factor_of(score));
    if (raised) {  // two waits again: ptxas would move one wait for both before the powers
      ptx::wgmma_wait();
      ptx::register_fence(softmax.sums[0]);
      softmax.rescale_sums();
    } else {
      ptx::wgmma_wait();
    }
    ptx::register_fence(powers);  // their registers are read until here
    ptx::register_fence(softmax.sums[0]);
#pragma unroll
    for (int k = 0; k < S::CHUNK; k += 16) softmax.operand(powers[k / 16], scores, 0, k);
    ptx::register_fence(powers);
    ptx::register_fence(softmax.sums[0]);
    if constexpr (PingPong<S>::SHARED_RING) {
      ping_pong.await_half(t);
    } else {
      ptx::copy_async_wait<FILLED - 1>();
      ptx::fence_async();
      warps_barrier<S::SLICE_WARPS>(1 + role.slice);  // stage t + 1 is in, stage t is used up
    }
    from = from + S::STAGE_BYTES == END ? 0 : from + S::STAGE_BYTES;
  }
  if (role.count > 0) {
    ptx::wgmma_fence();
    begin_sums(softmax, powers, panel(from + S::KEY_BYTES));
    ptx::wgmma_commit();
    ptx::wgmma_wait();
    ptx::register_fence(softmax.sums[0]);
  }

  // Every slice arrives equally often: compute-sanitizer's racecheck orders threads by how many barriers they passed.
  if constexpr (S::BOUNDED || S::CHUNKS % S::SLICES != 0) {
    for (int t = role.count; t < role.iterations; ++t) {
      ping_pong.acquire_tensor_cores();
      ping_pong.release_tensor_cores(t);
      warps_barrier<S::SLICE_WARPS>(1 + role.slice);
    }
  }
}

}  // namespace mt
