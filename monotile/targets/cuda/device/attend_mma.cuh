// Attention by mma.sync. Each warp has all rows of the block, and waits for no other warp.
#pragma once
#include "cuda/device/attend_supply.cuh"

namespace mt {

// Adds the values of a chunk, weighted by its powers.
template <class S>
__device__ __forceinline__ void add_values(OnlineSoftmax<S>& softmax, const typename S::Scores::Accumulator& powers, const char* panel,
                                           int lane) {
  constexpr int TM = OnlineSoftmax<S>::TM, TN = OnlineSoftmax<S>::TN;
  constexpr bool K_MAJOR = S::Value::K_MAJOR;
  int low = lane & 7, bit3 = (lane >> 3) & 1, bit4 = lane >> 4;
  Rows<typename S::ValuePanel> rows(panel, K_MAJOR ? bit4 * 8 + low : bit4 * 8, K_MAJOR ? bit3 * 8 : bit3 * 8 + low);
#pragma unroll
  for (int k = 0; k < S::CHUNK; k += 16) {
    u32 a[TM][4], b[TN][2];
#pragma unroll
    for (int i = 0; i < TM; ++i) softmax.operand(a[i], powers, i, k);
#pragma unroll
    for (int j = 0; j + 1 < TN; j += 2) {
      u32 pair[4];
      ptx::load_matrix_x4<!K_MAJOR>(pair, rows.at(j * 8, k));
      b[j][0] = pair[0], b[j][1] = pair[1], b[j + 1][0] = pair[2], b[j + 1][1] = pair[3];
    }
    if constexpr (TN % 2 == 1) ptx::load_matrix_x2<!K_MAJOR>(b[TN - 1], rows.at((TN - 1) * 8, k));
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j) ptx::mma_16816<typename S::T>(softmax.sums[i][j], a[i], b[j]);
  }
}

// Processes all keys of this warp for rows [m0, m1).
template <class S, class Await, class Query, class Key, class Value, class Score>
__device__ __forceinline__ void stream_warps(OnlineSoftmax<S>& softmax, const ThreadRole<S>& role, char* shared, int m0, int m1,
                                             const Await& await, const Query& query, const Key& key,
                                             const Value& value, const Score& score) {
  constexpr int DEPTH = S::DEPTH;
  char* ring = role.ring(shared);
  Supplies<S, Query, Key, Value> supplies(role, role.lane, m0, m1, query, key, value);
  auto begin = [&](int t) {
    constexpr int DISTANCE = S::SLICES * S::CHUNK;
    char* to = ring + t % DEPTH * S::STAGE_BYTES;
    supplies.keys.begin(to);
    supplies.keys.advance(DISTANCE, 0);
    supplies.values.begin(to + S::KEY_BYTES);
    supplies.values.advance(0, DISTANCE);
  };
  await();
  supplies.queries.begin(shared);
  ptx::copy_async_commit();
#pragma unroll 1
  for (int t = 0; t < DEPTH - 1; ++t) {
    if (t < role.count) begin(t);
    ptx::copy_async_commit();
  }
  ptx::copy_async_wait<DEPTH - 1>();
  block_barrier();  // the queries are in

#pragma unroll 1
  for (int t = 0; t < role.count; ++t) {
    ptx::copy_async_wait<DEPTH - 2>();
    __syncwarp();  // chunk t is in, chunk t - 1 is used up
    if (t + DEPTH - 1 < role.count) begin(t + DEPTH - 1);
    ptx::copy_async_commit();
    const char* chunk = ring + t % DEPTH * S::STAGE_BYTES;
    typename S::Scores::Accumulator scores;
    S::Scores::clear(scores);
    S::Scores::step(scores, shared, chunk, 0, 0, role.lane);
    to_scores<S>(scores, score, m0, m1, role.first(t), role.lane);
    if (softmax.update_maximum(scores, factor_of(score))) softmax.rescale_sums();
    softmax.exponentiate(scores, factor_of(score));
    add_values(softmax, scores, chunk + S::KEY_BYTES, role.lane);
  }
}

}  // namespace mt
