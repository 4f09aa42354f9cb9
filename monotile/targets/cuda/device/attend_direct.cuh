// Attention of few rows by mma.sync, with operands that come from memory straight into the fragments of the products. Each key is used
// once, by one warp: shared memory would only hold it in between.
//
// In which order a product adds up its terms is free, and so is which key or column has which place in a fragment. They are such that
// what a lane needs lies side by side in memory:
//
//   features   pass i of the products of queries and keys takes 32; lane t of four has the 8 from i * 32 + t * 8 on
//   columns    group q of the sums' tiles has 8 * RUN; lane g of eight has the RUN from (q * 8 + g) * RUN on, one for each tile
//
// A key's features are then whole lines that four lanes read together, its values' columns whole lines of eight lanes.
#pragma once
#include "cuda/device/attend_stream.cuh"

namespace mt {

// Loads N 16-bit neighbours, VECTOR at once, as words of two. What is not valid is zero.
template <int VECTOR, int N, class T>
__device__ __forceinline__ void load_pairs(u32 (&to)[N / 2], Source<T> from) {
  if (!from.valid) {
#pragma unroll
    for (int w = 0; w < N / 2; ++w) to[w] = 0;
    return;
  }
  if constexpr (VECTOR == 1) {
#pragma unroll
    for (int w = 0; w < N / 2; ++w) to[w] = u32(from.address[2 * w].bits) | u32(from.address[2 * w + 1].bits) << 16;
  } else {
    constexpr int WORDS = min_of(VECTOR, N) / 2;
#pragma unroll
    for (int w = 0; w < N / 2; w += WORDS) {
      const Pack<u32, WORDS> words = load<WORDS>(reinterpret_cast<const u32*>(from.address) + w);
#pragma unroll
      for (int i = 0; i < WORDS; ++i) to[w + i] = words[i];
    }
  }
}

// N neighbours of an operand in a thread's registers, from when they are asked for: as words of two, or as what is decoded when they are used.
template <class Operand, int VECTOR, int N>
struct Neighbours {
  u32 words[N / 2];
  __device__ __forceinline__ void ask(const Operand& operand, int row, int k) { load_pairs<VECTOR, N>(words, operand.source(row, k)); }
  __device__ __forceinline__ void take(u32 (&to)[N / 2], const Operand&, int, int) const {
#pragma unroll
    for (int w = 0; w < N / 2; ++w) to[w] = words[w];
  }
};
template <class Operand, int VECTOR, int N>
  requires(Operand::CODED)
struct Neighbours<Operand, VECTOR, N> {
  static_assert(VECTOR == N, "Codes are decoded in whole vectors.");
  Words<typename Operand::Codes> codes;  // not a register for each byte
  typename Operand::Sides sides;
  __device__ __forceinline__ void ask(const Operand& operand, int row, int k) { codes = words(operand.codes(row, k)), sides = operand.sides(row, k); }
  __device__ __forceinline__ void take(u32 (&to)[N / 2], const Operand& operand, int row, int k) const {
    const auto found = operand.decode(row, k, codes.whole(), sides);
#pragma unroll
    for (int w = 0; w < N / 2; ++w) to[w] = u32(found[2 * w].bits) | u32(found[2 * w + 1].bits) << 16;
  }
};

// The queries of a warp's rows, as left operands.
template <class S>
struct DirectQueries {
  static constexpr int TM = S::WARP_M / 16, PASSES = S::FEATURES / 32;
  u32 words[TM][2][PASSES][4];

  template <class Query>
  __device__ __forceinline__ DirectQueries(const Query& query, int m0, int m1, int lane) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int p = 0; p < PASSES; ++p) {
          const int row = i * 16 + h * 8;  // of lane / 4 == 0
          u32(&to)[4] = words[i][h][p];
          if (row < S::BLOCK_M) {
            load_pairs<S::Query::VECTOR, 8>(to, query.source(min_of(m0 + row + lane / 4, m1 - 1), p * 32 + (lane & 3) * 8));
          } else {
            to[0] = to[1] = to[2] = to[3] = 0;
          }
        }
  }
  // Of the `half` of pass `p`: 16 features.
  __device__ __forceinline__ void operand(u32 (&a)[4], int i, int p, int half) const {
#pragma unroll
    for (int q = 0; q < 4; ++q) a[q] = words[i][q % 2][p][half * 2 + q / 2];
  }
};

// The keys and values of a chunk, as right operands.
template <class S, class Key, class Value>
struct DirectChunk {
  static constexpr int PASSES = S::FEATURES / 32, TILES = S::CHUNK / 8;
  static constexpr int RUN = S::COLUMN_RUN, GROUPS = S::COLUMNS / (8 * RUN);
  Neighbours<Key, S::Key::VECTOR, 8> keys[TILES][PASSES];
  Neighbours<Value, S::Value::VECTOR, RUN> values[TILES][2][GROUPS];

  // Where a lane's keys and features lie, and its columns and the keys of these. Keys behind `last` are read as that one: their powers are 0.
  struct Where {
    int first, last, lane;
    __device__ __forceinline__ int key(int j) const { return min_of(first + j * 8 + lane / 4, last); }
    __device__ __forceinline__ int feature(int p) const { return p * 32 + (lane & 3) * 8; }
    __device__ __forceinline__ int column(int q) const { return (q * 8 + lane / 4) * RUN; }
    __device__ __forceinline__ int key_of_values(int j, int e) const { return min_of(first + j * 8 + (lane & 3) * 2 + e, last); }
  };

  __device__ __forceinline__ void load(const Key& key, const Value& value, const Where& at) {
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
      for (int p = 0; p < PASSES; ++p) keys[j][p].ask(key, at.key(j), at.feature(p));
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
#pragma unroll
        for (int q = 0; q < GROUPS; ++q) values[j][e][q].ask(value, at.column(q), at.key_of_values(j, e));
  }
  // Adds the products with the queries.
  __device__ __forceinline__ void add_scores(typename S::Scores::Accumulator& scores, const DirectQueries<S>& queries, const Key& key,
                                             const Where& at) const {
#pragma unroll
    for (int p = 0; p < PASSES; ++p) {
      u32 words[TILES][4];
#pragma unroll
      for (int j = 0; j < TILES; ++j) keys[j][p].take(words[j], key, at.key(j), at.feature(p));
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < S::Scores::TM; ++i) {
          u32 a[4];
          queries.operand(a, i, p, half);
#pragma unroll
          for (int j = 0; j < TILES; ++j) {
            const u32 b[2] = {words[j][half * 2], words[j][half * 2 + 1]};
            ptx::mma_16816<typename S::T>(scores.c[i][j], a, b);
          }
        }
    }
  }
  // Adds the values, weighted by the chunk's powers.
  __device__ __forceinline__ void add_values(OnlineSoftmax<S>& softmax, const typename S::Scores::Accumulator& powers, const Value& value,
                                             const Where& at) const {
#pragma unroll
    for (int k = 0; k < S::CHUNK; k += 16) {
      u32 words[2][2][GROUPS][RUN / 2];
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
#pragma unroll
          for (int q = 0; q < GROUPS; ++q) {
            const int tile = k / 8 + j;
            values[tile][e][q].take(words[j][e][q], value, at.column(q), at.key_of_values(tile, e));
          }
#pragma unroll
      for (int i = 0; i < OnlineSoftmax<S>::TM; ++i) {
        u32 a[4];
        softmax.operand(a, powers, i, k);
#pragma unroll
        for (int n = 0; n < OnlineSoftmax<S>::TN; ++n) {
          const u32 b[2] = {pair(words[0], n), pair(words[1], n)};
          ptx::mma_16816<typename S::T>(softmax.sums[i][n], a, b);
        }
      }
    }
  }

 private:
  // Of tile `n` of columns, the values of the lane's two keys of a tile.
  static __device__ __forceinline__ u32 pair(const u32 (&words)[2][GROUPS][RUN / 2], int n) {
    const u32 one = words[0][n / RUN][n % RUN / 2], two = words[1][n / RUN][n % RUN / 2];
    return n % 2 == 0 ? (one & 0xffffu) | two << 16 : one >> 16 | (two & 0xffff0000u);
  }
};

// Processes all keys of this warp for rows [m0, m1). DEPTH chunks are under way at first; then one is used while the others are.
template <class S, class Await, class Query, class Key, class Value, class Score>
__device__ __forceinline__ void stream_direct(OnlineSoftmax<S>& softmax, const ThreadRole<S>& role, int m0, int m1, int key1,
                                              const Await& await, const Query& query, const Key& key, const Value& value,
                                              const Score& score) {
  constexpr int DEPTH = S::DEPTH;
  const int lane = ptx::recompute(role.lane);
  const int last = (S::BOUNDED ? key1 : S::KEYS) - 1;
  using Chunk = DirectChunk<S, Key, Value>;
  auto place = [&](int t) { return typename Chunk::Where{role.first(t), last, lane}; };
  if constexpr (!same<Await, NoWait>) await();
  const DirectQueries<S> queries(query, m0, m1, lane);
  Chunk chunks[DEPTH];
#pragma unroll
  for (int d = 0; d < DEPTH; ++d)
    if (d < role.count) chunks[d].load(key, value, place(d));
#pragma unroll 1
  for (int t = 0; t < role.count; t += DEPTH) {
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {  // each its own registers: what is under way is not moved
      if (t + d >= role.count) break;
      typename S::Scores::Accumulator scores;
      S::Scores::clear(scores);
      chunks[d].add_scores(scores, queries, key, place(t + d));
      to_scores<S>(scores, score, m0, m1, role.first(t + d), lane);
      if (softmax.update_maximum(scores, factor_of(score))) softmax.rescale_sums();
      softmax.exponentiate(scores, factor_of(score));
      chunks[d].add_values(softmax, scores, value, place(t + d));
      if (t + d + DEPTH < role.count) chunks[d].load(key, value, place(t + d + DEPTH));
    }
  }
}

}  // namespace mt
