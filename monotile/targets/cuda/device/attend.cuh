// Softmax-weighted sums of values, streamed along the keys: scores live in registers alone (FlashAttention, Dao et al., 2022).
//
//   out[row, column] = sum over keys of softmax(score(row, key, query[row] . key[key])) * value[key, column]
//
// A block of rows is one block's task. Slices of warps deal the chunks of keys among themselves; each keeps, for all rows, the
// largest score that it has seen, the sum of the powers relative to it and the weighted sum of the values. No slice waits for
// another until the end, where these meet in shared memory.
#pragma once
#include "cuda/device/attend_mma.cuh"
#include "cuda/device/attend_wgmma.cuh"

namespace mt {

// Rows [m0, m1), at most a block, by all threads of the block. What it reads is there when await() has returned, which all threads
// call once. score(row, key, product) is the score of a product, or `score` is Scaled. A total below `least` counts as that. The
// results go to epilogue(row, column, Pack<float, WIDTH>, fetch(row, column), live), see `contract`. Shared memory is free to use for
// others when this returns.
template <class S, class Await, class Query, class Key, class Value, class Score, class Fetch, class Epilogue>
__device__ __forceinline__ void attend(char* shared, int m0, int m1, const Await& await, const Query& query,
                                       const Key& key, const Value& value, const Score& score, float least,
                                       const Fetch& fetch, const Epilogue& epilogue) {
  const Member<S> self;
  Stream<S> stream;
  if constexpr (S::GROUPS)
    stream_groups(stream, self, shared, m0, m1, await, query, key, value, score);
  else
    stream_warps(stream, self, shared, m0, m1, await, query, key, value, score);

  ptx::copy_async_wait<0>();
  block_barrier();  // queries and rings are used up
  float* found = reinterpret_cast<float*>(shared);
  stream.leave(found, self);
  block_barrier();
  constexpr int ACROSS = S::COLUMNS / S::WIDTH, TOTAL = S::BLOCK_M * ACROSS;
  constexpr int USED = min_of(S::SLICES, S::CHUNKS);  // slices that had keys
  constexpr int ROUNDS = ceil_div(TOTAL, S::THREADS), TURNS = even_turns(ROUNDS, MANY_TURNS);
#pragma unroll 1
  for (int round = 0; round < ROUNDS; round += TURNS) {
#pragma unroll
    for (int i = 0; i < TURNS; ++i) {
      unsigned e = (round + i) * S::THREADS + threadIdx.x;
      int m = int(e / ACROSS), n = int(e % ACROSS) * S::WIDTH;
      bool live = e < TOTAL && m0 + m < m1;
      if (!live) m = n = 0;  // no branch: see contract.cuh
      const float* tops = found + S::BLOCK_M * S::PITCH + m;
      Pack<float, S::WIDTH> sum = load<S::WIDTH>(found + m * S::PITCH + n);
      float total = tops[S::BLOCK_M];
      if constexpr (USED > 1) {
        float top = tops[0];
#pragma unroll
        for (int s = 1; s < USED; ++s) top = fmaxf(top, tops[s * S::FOUND]);
        float from = top == -MT_INF ? 0.f : top * LOG2_E;
        float weight = ptx::exp2_fast(fmaf(tops[0], LOG2_E, -from));
        total *= weight;
#pragma unroll
        for (int v = 0; v < S::WIDTH; ++v) sum[v] *= weight;
#pragma unroll
        for (int s = 1; s < USED; ++s) {
          weight = ptx::exp2_fast(fmaf(tops[s * S::FOUND], LOG2_E, -from));
          total += weight * tops[s * S::FOUND + S::BLOCK_M];
          Pack<float, S::WIDTH> part = load<S::WIDTH>(found + s * S::FOUND + m * S::PITCH + n);
#pragma unroll
          for (int v = 0; v < S::WIDTH; ++v) sum[v] += weight * part[v];
        }
      }
      float scale = ptx::reciprocal_fast(total < least ? least : total);
#pragma unroll
      for (int v = 0; v < S::WIDTH; ++v) sum[v] *= scale;
      epilogue(m0 + m, n, sum, fetch(m0 + m, n), live);
    }
  }
  block_barrier();
}

}  // namespace mt
