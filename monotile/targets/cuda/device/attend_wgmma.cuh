// Attention by wgmma (FlashAttention-3, Shah et al., 2024): each warp has 16 rows, a slice of whole warpgroups shares its chunks.
//
// While a chunk's scores become powers, the values of the chunk before it are added. So the ring's stage t holds the keys of chunk t
// and the values of chunk t - 1: what is read together. The two warpgroups have the tensor cores in turn, so that one makes powers
// while the other's products go on: side by side both would wait for the same. Whisper's encoder, 1500 keys: 19.7 for 21.6 us (H100).
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

// The two warpgroups of a block, and the named barriers by which they wait for each other but not for themselves.
template <class S>
struct Partners {
  static_assert(S::WARPS == 8, "two warpgroups");
  static constexpr int THREADS = 256;
  // Whether both read one ring, of which each fills a half of every stage. Then a stage is filled a chunk later than it could
  // be, and a half is handed on as soon as it is in: neither waits for the other at the end of the same chunk.
  static constexpr bool SHARE = S::SLICES == 1;
  static constexpr int FILLED = S::RING - (SHARE ? 2 : 1);  // stages that are filled ahead
  static_assert(FILLED > 0, "a ring has room for what is used, and what comes next");
  // Turns of each: as many for one that has a chunk less (see the end of `stream_groups`).
  static constexpr int TURNS = ceil_div(S::CHUNKS, S::SLICES);
  int own, other;

  // The first turn is the first one's.
  __device__ __forceinline__ explicit Partners(const Member<S>& self) : own(self.warp / 4), other(1 - own) {
    if (own == 1) ptx::barrier_arrive<THREADS>(TURN + other);
  }
  // The turn to begin the products of a chunk; those of chunk `t` have begun.
  __device__ __forceinline__ void await_turn() const { ptx::barrier_some<THREADS>(TURN + own); }
  __device__ __forceinline__ void pass_turn(int t) const {
    if (own == 0 || t + 1 < TURNS) ptx::barrier_arrive<THREADS>(TURN + other);
  }
  // This half of the stage after chunk `t` is in; the other's is, and what that reads of the chunk before `t` is used up.
  __device__ __forceinline__ void hand_on(int t) const { ptx::barrier_arrive<THREADS>(HALF + 2 * own + (t & 1)); }
  __device__ __forceinline__ void await_half(int t) const { ptx::barrier_some<THREADS>(HALF + 2 * other + (t & 1)); }

 private:
  static constexpr int TURN = 3, HALF = 5;  // 1 and 2 are the slices'
};

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
  constexpr int FILLED = Partners<S>::FILLED;
  const Partners<S> partners(self);
  await();
  supplies.queries.begin(shared);
#pragma unroll 1
  for (int t = 0; t < FILLED; ++t) begin(t);
  ptx::copy_async_wait<FILLED - 1>();
  ptx::fence_async();
  block_barrier();  // the queries are in, and the first stage

  const u32 rows = ptx::panel_address(ptx::shared_address(shared) + self.row / 64 * 64 * 128);
  typename S::Scores::Accumulator scores;
  u32 powers[S::CHUNK / 16][4] = {};
#pragma unroll 1
  for (int t = 0; t < self.count; ++t) {
    partners.await_turn();
    ptx::wgmma_fence();
    begin_scores<S>(scores, rows, panel(from));
    ptx::wgmma_commit();
    begin(t + FILLED);
    // Each branch has its own wait: one for both, and ptxas makes a group of products of its own where the branches meet (C7519), or
    // puts all products in line (C7514).
    if (t > 0) {
      ptx::wgmma_fence();
      begin_sums(stream, powers, panel(from + S::KEY_BYTES));
      ptx::wgmma_commit();
      partners.pass_turn(t);
      ptx::wgmma_wait<1>();
    } else {
      partners.pass_turn(t);
      ptx::wgmma_wait();
    }
    if constexpr (Partners<S>::SHARE) {
      ptx::copy_async_wait<FILLED - 1>();
      ptx::fence_async();
      partners.hand_on(t);
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
    if constexpr (Partners<S>::SHARE) {
      partners.await_half(t);
    } else {
      ptx::copy_async_wait<FILLED - 1>();
      ptx::fence_async();
      warps_barrier<S::SLICE_WARPS>(1 + self.slice);  // stage t + 1 is in, stage t is used up
    }
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
  if constexpr (S::CHUNKS % S::SLICES != 0) {
    for (int t = self.count; t < Partners<S>::TURNS; ++t) {
      partners.await_turn();
      partners.pass_turn(t);
      warps_barrier<S::SLICE_WARPS>(1 + self.slice);
    }
  }
}

}  // namespace mt
