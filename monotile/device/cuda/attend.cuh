// Softmax-weighted sums of values, streamed along the keys: scores live in registers alone (FlashAttention, Dao et al., 2022).
//
//   out[row, column] = sum over keys of softmax(score(row, key, query[row] . key[key])) * value[key, column]
//
// A block of rows is one block's task. Slices of warps deal the chunks of keys among themselves; each keeps, for all rows, the
// largest score that it has seen, the sum of the powers relative to it and the weighted sum of the values. No slice waits for
// another until the end, where these meet in shared memory.
#pragma once
#include "cuda/attend_mma.cuh"
#include "cuda/attend_wgmma.cuh"

namespace mt {

// Rows [m0, m1), at most a block, by all threads of the block. What it reads is there when await() has returned, which all threads
// call once. score(row, key, product) is the score of a product, or `score` is Scaled. A total below `least` counts as that. The
// results go to epilogue(row, column, Pack<float, WIDTH>, fetch(row, column), true). Shared memory is free to use for others when
// this returns.
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
#pragma unroll 2
  for (int e = threadIdx.x; e < TOTAL; e += S::THREADS) {
    int m = int(unsigned(e) / ACROSS), n = int(unsigned(e) % ACROSS) * S::WIDTH;
    if (m0 + m >= m1) break;
    const float* tops = found + S::BLOCK_M * S::PITCH + m;
    float top = -MT_INF, total = 0;
#pragma unroll
    for (int s = 0; s < USED; ++s) top = fmaxf(top, tops[s * S::FOUND]);
    float from = top == -MT_INF ? 0.f : top * LOG2_E;
    Pack<float, S::WIDTH> sum{};
#pragma unroll
    for (int s = 0; s < USED; ++s) {
      float weight = ptx::exp2_fast(fmaf(tops[s * S::FOUND], LOG2_E, -from));
      total += weight * tops[s * S::FOUND + S::BLOCK_M];
      Pack<float, S::WIDTH> part = load<S::WIDTH>(found + s * S::FOUND + m * S::PITCH + n);
#pragma unroll
      for (int v = 0; v < S::WIDTH; ++v) sum[v] += weight * part[v];
    }
    float scale = 1.f / (total < least ? least : total);
#pragma unroll
    for (int v = 0; v < S::WIDTH; ++v) sum[v] *= scale;
    epilogue(m0 + m, n, sum, fetch(m0 + m, n), true);
  }
  block_barrier();
}

}  // namespace mt
