// Attention by wgmma (FlashAttention-3, Shah et al., 2024): each warp has 16 rows, a slice of whole warpgroups shares its chunks.
//
// While a chunk's scores become powers, the values of the chunk before it are added; and what one warpgroup leaves of the tensor
// cores the other takes. So the ring's stage t holds the keys of chunk t and the values of chunk t - 1: what is read together.
#pragma once
#include "cuda/attend_supply.cuh"

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
      ptx::wgmma<typename S::T, TN, true, false>(scores.c[0], a, b);
    else
      ptx::wgmma<typename S::T, TN, true>(scores.c[0], a, b);
  }
}

// Begins to add the values of a chunk, weighted by its powers.
template <class S>
__device__ __forceinline__ void begin_sums(Stream<S>& stream, const u32 (&powers)[S::CHUNK / 16][4], u32 values) {
#pragma unroll
  for (int k = 0; k < S::CHUNK; k += 16)
#pragma unroll
    for (int p = 0; p < S::COLUMN_PANELS; ++p)
      ptx::wgmma<typename S::T>(reinterpret_cast<float(&)[8][4]>(stream.sums[0][p * 8]), powers[k / 16],
                                ptx::panel_descriptor(values, p * S::ValuePanel::BYTES + k * 128));
}

// Takes in all keys of this slice for rows [m0, m1).
template <class S, class Await, class Query, class Key, class Value, class Score>
__device__ __forceinline__ void stream_groups(Stream<S>& stream, const Member<S>& self, char* shared, int m0, int m1,
                                              const Await& await, const Query& query, const Key& key,
                                              const Value& value, const Score& score) {
  static_assert(S::KeyPanel::BYTES % 1024 == 0 && S::ValuePanel::BYTES % 1024 == 0, "panels begin at multiples of 1024 bytes");
  constexpr int RING = S::RING, END = RING * S::STAGE_BYTES;
  char* ring = self.ring(shared);
  int to = 0, from = 0;  // stages of the ring: next to fill, next to use
  Supplies<S, Query, Key, Value> supplies(self, self.thread, m0, m1, query, key, value);
  auto begin = [&](int t) {
    constexpr int DISTANCE = S::SLICES * S::CHUNK;
    if (t < self.count) {
      supplies.keys.begin(ring + to);
      supplies.keys.advance(DISTANCE, 0);
    }
    if (0 < t && t <= self.count) {
      supplies.values.begin(ring + to + S::KEY_BYTES);
      supplies.values.advance(0, DISTANCE);
    }
    ptx::copy_async_commit();
    to = to + S::STAGE_BYTES == END ? 0 : to + S::STAGE_BYTES;
  };
  auto panel = [&](int offset) { return ptx::panel_address(ptx::shared_address(ring) + offset); };
  await();
  supplies.queries.begin(shared);
#pragma unroll 1
  for (int t = 0; t < RING - 1; ++t) begin(t);
  ptx::copy_async_wait<RING - 2>();
  ptx::fence_async();
  block_barrier();  // the queries are in, and the first stage

  const u32 rows = ptx::panel_address(ptx::shared_address(shared) + self.row / 64 * 64 * 128);
  typename S::Scores::Accumulator scores;
  u32 powers[S::CHUNK / 16][4] = {};
#pragma unroll 1
  for (int t = 0; t < self.count; ++t) {
    ptx::wgmma_fence();
    begin_scores<S>(scores, rows, panel(from));
    ptx::wgmma_commit();
    begin(t + RING - 1);
    // Each branch has its own wait: one for both, and ptxas makes a group of products of its own where the branches meet (C7519), or
    // puts all products in line (C7514).
    if (t > 0) {
      ptx::wgmma_fence();
      begin_sums(stream, powers, panel(from + S::KEY_BYTES));
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
    } else {
      ptx::wgmma_wait();
    }
    ptx::pinned(scores.c[0]);
    to_scores<S>(scores, score, m0 + self.row, m1, self.first(t), self.lane);
    bool raised = stream.raise(scores, factor_of(score));
    stream.weigh(scores, factor_of(score));
    if (raised) {  // once more: one wait for both, and ptxas puts it before the powers
      ptx::wgmma_wait();
      ptx::pinned(stream.sums[0]);
      stream.fade_sums();
    } else {
      ptx::wgmma_wait();
    }
    ptx::pinned(powers);  // their registers are read until here
    ptx::pinned(stream.sums[0]);
#pragma unroll
    for (int k = 0; k < S::CHUNK; k += 16) stream.operand(powers[k / 16], scores, 0, k);
    ptx::pinned(powers);
    ptx::pinned(stream.sums[0]);
    ptx::copy_async_wait<RING - 2>();
    ptx::fence_async();
    warps_barrier<S::SLICE_WARPS>(1 + self.slice);  // stage t + 1 is in, stage t is used up
    from = from + S::STAGE_BYTES == END ? 0 : from + S::STAGE_BYTES;
  }
  if (self.count > 0) {
    ptx::wgmma_fence();
    begin_sums(stream, powers, panel(from + S::KEY_BYTES));
    ptx::wgmma_commit();
    ptx::wgmma_wait();
    ptx::pinned(stream.sums[0]);
  }

  // Every slice arrives equally often: compute-sanitizer's racecheck orders threads by how many barriers they passed.
  if constexpr (S::CHUNKS % S::SLICES != 0)
    for (int t = self.count; t < ceil_div(S::CHUNKS, S::SLICES); ++t) warps_barrier<S::SLICE_WARPS>(1 + self.slice);
}

}  // namespace mt
