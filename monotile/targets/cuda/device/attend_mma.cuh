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

// The same of float32. Values are read word by word, two keys a lane (`OnlineSoftmax::wide_operand`); their sums over a chunk are rounded to
// nearest, as those of `Mma` are.
template <class S>
__device__ __forceinline__ void add_wide_values(OnlineSoftmax<S>& softmax, const typename S::Scores::Accumulator& powers,
                                                const char* panel, int lane) {
  using Panel = typename S::ValuePanel;
  constexpr int TM = OnlineSoftmax<S>::TM, TN = OnlineSoftmax<S>::TN, STEPS = S::CHUNK / 8;
  auto word = [&](int column, int key) {
    const int line = Panel::K_MAJOR ? column : key, inner = Panel::K_MAJOR ? key : column;
    return *reinterpret_cast<const u32*>(panel + Panel::offset(line, inner / Panel::UNIT) + inner % Panel::UNIT * 4);
  };
  u32 a[STEPS][TM][4], a_low[STEPS][TM][4];
#pragma unroll
  for (int k = 0; k < STEPS; ++k)
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      softmax.wide_operand(a[k][i], powers, i, k * 8);
      if constexpr (S::PASSES == 1)
        round(a[k][i]);
      else
        rests(a_low[k][i], a[k][i]);
    }
#pragma unroll
  for (int j = 0; j < TN; ++j) {
    float part[TM][4] = {};
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
      const int column = j * 8 + lane / 4, key = k * 8 + (lane & 3) * 2;
      u32 b[2] = {word(column, key), word(column, key + 1)};
      if constexpr (S::PASSES == 1) {
        round(b);
      } else {
        u32 b_low[2];
        rests(b_low, b);
#pragma unroll
        for (int i = 0; i < TM; ++i) {
          ptx::mma<float, float>(part[i], a_low[k][i], b);
          ptx::mma<float, float>(part[i], a[k][i], b_low);
        }
      }
#pragma unroll
      for (int i = 0; i < TM; ++i) ptx::mma<float, float>(part[i], a[k][i], b);
    }
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) softmax.sums[i][j][e] += part[i][e];
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
    if constexpr (sizeof(typename S::T) == 4)
      add_wide_values(softmax, scores, chunk + S::KEY_BYTES, role.lane);
    else
      add_values(softmax, scores, chunk + S::KEY_BYTES, role.lane);
  }
}

}  // namespace mt
