// Softmax-weighted sums of values, streamed along the keys: scores live in registers alone (FlashAttention, Dao et al., 2022).
//
//   out[row, column] = sum over keys of softmax(score(row, key, query[row] . key[key])) * value[key, column]
//
// A block of threads computes a block of rows. Its slices of warps share the chunks of keys (split-K). Each slice keeps an online
// softmax of all rows: the largest score so far, the total of the powers relative to it, and the weighted sum of the values. No
// slice waits for another until the end, where these partial results meet in shared memory.
#pragma once
#include "cuda/device/attend_direct.cuh"
#include "cuda/device/attend_mma.cuh"
#include "cuda/device/attend_wgmma.cuh"

namespace mt {

// Computes rows [m0, m1), at most a block, with all threads of the block. S: an `Attention`.
//
// key0, key1: where S::BOUNDED, the chunks without a key in [key0, key1) are left out; `score` gives -inf for those keys of the others.
// await: waits for the hand-off of what it reads; all threads call it once. score(row) is a `RowScore`; or
// `score` is `Scaled`. finish: what a total is at least; or, where S::PART, `key_part`. epilogue(row, column, Pack<float, VECTOR>, fetch(row, column),
// valid) takes the results, as in `contract`. When this returns shared memory is free.
template <class S, class Await, class Query, class Key, class Value, class Score, class Finish, class Fetch, class Epilogue>
__device__ __forceinline__ void attend(char* shared, int m0, int m1, int key0, int key1, const Await& await, const Query& query,
                                       const Key& key, const Value& value, const Score& score, const Finish& finish,
                                       const Fetch& fetch, const Epilogue& epilogue) {
  static_assert(same<Finish, float> != S::PART, "A part of the keys is finished by a `key_part`, and nothing else is.");
  const ThreadRole<S> role(key0, key1);
  OnlineSoftmax<S> softmax(lowest_of(finish));
  if constexpr (S::WARPGROUPS)
    stream_warpgroups(softmax, role, shared, m0, m1, await, query, key, value, score);
  else if constexpr (S::DIRECT)
    stream_direct(softmax, role, m0, m1, key1, await, query, key, value, score);
  else
    stream_warps(softmax, role, shared, m0, m1, await, query, key, value, score);

  if constexpr (!S::DIRECT) {
    ptx::copy_async_wait<0>();
    block_barrier();  // queries and rings are used up
  }
  float* partials = reinterpret_cast<float*>(shared);
  softmax.store_partial(partials, role);
  block_barrier();
  constexpr int ROW_VECTORS = S::WIDTH / S::VECTOR, TOTAL = S::BLOCK_M * ROW_VECTORS;
  constexpr int USED = min_of(S::SLICES, S::CHUNKS);  // slices that had keys
  constexpr int STEPS = ceil_div(TOTAL, S::THREADS), UNROLL = even_unroll(STEPS, UNROLLED_OF_MANY);
#pragma unroll 1
  for (int step = 0; step < STEPS; step += UNROLL) {
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
      unsigned e = (step + i) * S::THREADS + threadIdx.x;
      int m = int(e / ROW_VECTORS), n = int(e % ROW_VECTORS) * S::VECTOR;
      bool valid = e < TOTAL && m0 + m < m1;
      if (!valid) m = n = 0;  // no branch: see contract.cuh
      const float* maxima = partials + S::BLOCK_M * S::PITCH + m;
      Pack<float, S::VECTOR> sum = load<S::VECTOR>(partials + m * S::PITCH + n);
      float total = maxima[S::BLOCK_M], maximum = maxima[0];
      if constexpr (USED > 1) {
#pragma unroll
        for (int s = 1; s < USED; ++s) maximum = fmaxf(maximum, maxima[s * S::PARTIAL]);
        float from = maximum == -MT_INF ? 0.f : maximum;
        float weight = power_of<true>(maxima[0], 1.f, from);
        total *= weight;
#pragma unroll
        for (int v = 0; v < S::VECTOR; ++v) sum[v] *= weight;
#pragma unroll
        for (int s = 1; s < USED; ++s) {
          weight = power_of<true>(maxima[s * S::PARTIAL], 1.f, from);
          total += weight * maxima[s * S::PARTIAL + S::BLOCK_M];
          Pack<float, S::VECTOR> part = load<S::VECTOR>(partials + s * S::PARTIAL + m * S::PITCH + n);
#pragma unroll
          for (int v = 0; v < S::VECTOR; ++v) sum[v] += weight * part[v];
        }
      }
      if constexpr (S::PART) {
        if (n == 0 && valid) finish.take(m0 + m, maximum, total);
      } else {
        float scale = ptx::reciprocal_fast(total < finish ? finish : total);
#pragma unroll
        for (int v = 0; v < S::VECTOR; ++v) sum[v] *= scale;
      }
      epilogue(m0 + m, n, sum, fetch(m0 + m, n), valid);
    }
  }
  block_barrier();
}

}  // namespace mt
