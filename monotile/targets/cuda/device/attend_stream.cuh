// What a softmax-weighted sum of values is cut into, and what its warps keep of the keys that they have seen.
#pragma once
#include "cuda/device/contract.cuh"
#include "cuda/device/math.cuh"

namespace mt {

inline constexpr float LOG2_E = 1.4426950408889634f;

// A slice of warps shares a ring of RING stages of keys and values; with mma.sync it is one warp, which has all rows of the block, with
// wgmma the warpgroups that the block's rows make, each of its warps with 16. Chunk c belongs to slice c % SLICES.
template <Kernel KERNEL, class Query_, class Key_, class Value_, int FEATURES_, int COLUMNS_, int KEYS_,
          int BLOCK_M_, int CHUNK_, int WARPS_, int RING_, int WIDTH_>
struct Attention {
  using Query = Query_;
  using Key = Key_;
  using Value = Value_;
  using T = typename Query::T;
  static_assert(same<T, typename Key::T> && same<T, typename Value::T>, "all operands have one element type");
  static constexpr bool GROUPS = KERNEL == Kernel::WGMMA;  // operands are read by warpgroups
  static constexpr int FEATURES = FEATURES_, COLUMNS = COLUMNS_, KEYS = KEYS_;
  static constexpr int BLOCK_M = BLOCK_M_, CHUNK = CHUNK_, WARPS = WARPS_, RING = RING_, WIDTH = WIDTH_;
  static constexpr int THREADS = WARPS * 32;
  static constexpr int WARP_M = GROUPS ? 16 : BLOCK_M;
  static constexpr int SLICE_WARPS = BLOCK_M / WARP_M, SLICE_THREADS = SLICE_WARPS * 32, SLICES = WARPS / SLICE_WARPS;
  static constexpr int CHUNKS = ceil_div(KEYS, CHUNK);
  static_assert(BLOCK_M % 16 == 0 && CHUNK % 16 == 0 && COLUMNS % 8 == 0, "whole tiles of the tensor cores");
  static_assert(RING >= 2 && COLUMNS % WIDTH == 0, "a ring has two chunks at least, a row whole stores");
  static_assert(WARPS % SLICE_WARPS == 0 && SLICES < 16, "slices share the warps evenly; a block has 15 named barriers");
  static_assert(!GROUPS || (BLOCK_M % 64 == 0 && FEATURES % 64 == 0 && COLUMNS % 64 == 0 && Query::K_MAJOR && Key::K_MAJOR &&
                            !Value::K_MAJOR),
                "a line of a warpgroup's panel is 64 features or columns, which are neighbours");

  // Warpgroups read features and columns in panels of 64, one behind the other.
  static constexpr int DEEP = GROUPS ? 64 : ceil_div(FEATURES, 16) * 16, ACROSS = GROUPS ? 64 : COLUMNS;
  static constexpr int FEATURE_PANELS = ceil_div(FEATURES, DEEP), COLUMN_PANELS = COLUMNS / ACROSS;
  using QueryPanel = Panel<T, BLOCK_M, DEEP, Query::K_MAJOR>;
  using KeyPanel = Panel<T, CHUNK, DEEP, Key::K_MAJOR>;
  using ValuePanel = Panel<T, ACROSS, CHUNK, Value::K_MAJOR>;
  using QueryIntake = Intake<QueryPanel, T, Query::K_MAJOR, Query::COPY, Query::VECTOR, BLOCK_M,
                             FEATURES, DEEP, THREADS, Query::CHECK_ROWS>;
  using KeyIntake = Intake<KeyPanel, T, Key::K_MAJOR, Key::COPY, Key::VECTOR, CHUNK, FEATURES, DEEP, SLICE_THREADS,
                           KEYS % CHUNK != 0>;
  using ValueIntake = Intake<ValuePanel, T, Value::K_MAJOR, Value::COPY, Value::VECTOR, ACROSS, KEYS, CHUNK,
                             SLICE_THREADS, false>;
  using Scores = Mma<T, WARP_M, CHUNK, DEEP, QueryPanel, Query::K_MAJOR, KeyPanel, Key::K_MAJOR>;

  static __host__ __device__ constexpr int lined(int bytes) { return ceil_div(bytes, 128) * 128; }
  static constexpr int QUERY_BYTES = lined(FEATURE_PANELS * QueryPanel::BYTES);
  static constexpr int KEY_BYTES = lined(FEATURE_PANELS * KeyPanel::BYTES);
  static constexpr int STAGE_BYTES = KEY_BYTES + lined(COLUMN_PANELS * ValuePanel::BYTES);
  // What the slices have found, each: the sums of a row, its largest score, its total.
  static constexpr int PITCH = COLUMNS + (COLUMNS % 16 == 0 ? 8 : 0);
  static constexpr int FOUND = BLOCK_M * (PITCH + 2);
  static constexpr int BYTES = max_of(QUERY_BYTES + SLICES * RING * STAGE_BYTES, SLICES * FOUND * 4);
};

// Who a thread is: its warp and lane, its slice and its number there, the first of its warp's rows, its slice's number of chunks.
template <class S>
struct Member {
  int warp, lane, slice, thread, row, count;

  __device__ __forceinline__ Member() {
    const int self = threadIdx.x;
    warp = ptx::uniform(self / 32), lane = self % 32;
    slice = warp / S::SLICE_WARPS, thread = self - slice * S::SLICE_THREADS, row = warp % S::SLICE_WARPS * S::WARP_M;
    count = slice < S::CHUNKS ? (S::CHUNKS - slice + S::SLICES - 1) / S::SLICES : 0;
  }
  // The first key of chunk `t` of the slice.
  __device__ __forceinline__ int first(int t) const { return (slice + t * S::SLICES) * S::CHUNK; }
  __device__ __forceinline__ char* ring(char* shared) const {
    return shared + S::QUERY_BYTES + slice * (S::RING * S::STAGE_BYTES);
  }
};

// Scores that are products times a positive factor, with which they are multiplied where powers are made of them.
struct Scaled {
  float factor;
};
template <class Score>
__device__ __forceinline__ float factor_of(const Score&) {
  return 1.f;
}
__device__ __forceinline__ float factor_of(const Scaled& score) { return score.factor; }

// Makes scores, but for their factor, of the products of a warp's rows, from `row0` on, and the keys from `first` on. Where there is
// no key they are -inf.
template <class S, class Score>
__device__ __forceinline__ void to_scores(typename S::Scores::Accumulator& x, const Score& score, int row0, int m1, int first,
                                          int lane) {
  constexpr bool RAGGED = S::KEYS % S::CHUNK != 0;  // the last chunk has columns without a key
  if constexpr (!same<Score, Scaled>) {
#pragma unroll
    for (int i = 0; i < S::Scores::TM; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        int row = min_of(row0 + i * 16 + h * 8 + lane / 4, m1 - 1);
#pragma unroll
        for (int j = 0; j < S::Scores::TN; ++j)
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; ++e) {
            int at = first + j * 8 + (lane & 3) * 2 + e % 2;
            x.c[i][j][e] = score(row, RAGGED ? min_of(at, S::KEYS - 1) : at, x.c[i][j][e]);
          }
      }
  }
  if (RAGGED && first + S::CHUNK > S::KEYS) {
#pragma unroll
    for (int i = 0; i < S::Scores::TM; ++i)
#pragma unroll
      for (int j = 0; j < S::Scores::TN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (first + j * 8 + (lane & 3) * 2 + e % 2 >= S::KEYS) x.c[i][j][e] = -MT_INF;
  }
}

// The largest scores, totals and weighted sums of one warp for its rows; a thread has rows lane / 4 and + 8 of each 16. A chunk's
// scores go through `raise`, if that says so `fade_sums`, and `weigh`; then they are powers, the left operand of the next product.
template <class S>
struct Stream {
  static constexpr int TM = S::WARP_M / 16, TN = S::COLUMNS / 8, TS = S::CHUNK / 8;
  using T = typename S::T;
  static constexpr float SLACK = 5.5f;  // powers up to 2^8, which float16 holds as precisely as those up to 1
  float top[TM][2], total[TM][2], fade[TM][2], sums[TM][TN][4];

  __device__ __forceinline__ Stream() {
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) top[i][h] = -MT_INF, total[i][h] = 0;
#pragma unroll
      for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;
    }
  }

  // Raises `top` where a chunk's scores are larger; whether that was so, and sums and powers have to be made anew relative to it.
  // It is not the largest score but no less than SLACK below it, so that this is seldom (FlashAttention-4): a power of two at
  // most 2^(SLACK * log2 e).
  __device__ __forceinline__ bool raise(const typename S::Scores::Accumulator& scores, float factor) {
    float most[TM][2];
    bool beyond = false;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        most[i][h] = scores.c[i][0][2 * h];
#pragma unroll
        for (int j = 0; j < TS; ++j)
          most[i][h] = fmaxf(most[i][h], fmaxf(scores.c[i][j][2 * h], scores.c[i][j][2 * h + 1]));
        most[i][h] *= factor;
        beyond |= most[i][h] > top[i][h] + SLACK;
      }
    if (!__any_sync(0xffffffffu, beyond)) return false;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float next = fmaxf(top[i][h], most[i][h]);
        next = fmaxf(next, shuffled(next, 1));
        next = fmaxf(next, shuffled(next, 2));
        fade[i][h] = ptx::exp2_fast((top[i][h] - origin(next)) * LOG2_E);
        top[i][h] = next;
        total[i][h] *= fade[i][h];
      }
    return true;
  }
  __device__ __forceinline__ void fade_sums() {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][j][e] *= fade[i][e / 2];
  }

  // Makes powers of scores, relative to `top`.
  __device__ __forceinline__ void weigh(typename S::Scores::Accumulator& scores, float factor) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float from = origin(top[i][h]) * LOG2_E, added = 0;
#pragma unroll
        for (int j = 0; j < TS; ++j)
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; ++e) {
            float power = ptx::exp2_fast(fmaf(scores.c[i][j][e], factor * LOG2_E, -from));
            scores.c[i][j][e] = power;
            added += power;
          }
        total[i][h] += added;
      }
  }

  // What mma.m16n8k16 takes of the powers of keys [k, k + 16) of a chunk as its left operand.
  static __device__ __forceinline__ void operand(u32 (&a)[4], const typename S::Scores::Accumulator& powers, int i, int k) {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float* pair = powers.c[i][k / 8 + q / 2] + q % 2 * 2;
      a[q] = u32(bits(pair[0])) | u32(bits(pair[1])) << 16;
    }
  }

  // Writes what this warp has found where all of them meet.
  __device__ __forceinline__ void leave(float* found, const Member<S>& self) {
    float* own = found + self.slice * S::FOUND;
    int lane = self.lane;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float all = total[i][h];
        all += shuffled(all, 1);
        all += shuffled(all, 2);
        int row = self.row + i * 16 + h * 8 + lane / 4;
        float* at = own + row * S::PITCH + (lane & 3) * 2;
#pragma unroll
        for (int j = 0; j < TN; ++j) store(at + j * 8, Pack<float, 2>{{sums[i][j][2 * h], sums[i][j][2 * h + 1]}});
        if ((lane & 3) == 0) {
          own[S::BLOCK_M * S::PITCH + row] = top[i][h];
          own[S::BLOCK_M * (S::PITCH + 1) + row] = all;
        }
      }
  }

 private:
  // What powers are relative to; 0 while nothing but -inf was seen.
  static __device__ __forceinline__ float origin(float top) { return top == -MT_INF ? 0.f : top; }
  static __device__ __forceinline__ float shuffled(float x, int mask) {
    return __uint_as_float(__shfl_xor_sync(0xffffffffu, __float_as_uint(x), mask));
  }
  static __device__ __forceinline__ u16 bits(float x) { return cast<T>(x).bits; }
};

}  // namespace mt
