// The configuration of attention, and the online softmax of a warp.
#pragma once
#include "cuda/device/contract.cuh"
#include "cuda/device/math.cuh"

namespace mt {

inline constexpr float LOG2_E = 1.4426950408889634f;

// Attention, cut for one block of threads.
struct AttentionConfig {
  Kernel kernel = Kernel::MMA;
  int features = 0;        // of a query and of a key
  int columns = 0;         // of a value, and of the result
  int keys = 0;
  int block_m = 0;         // rows, each of one query, that the block of threads computes at once: a multiple of 16, or with direct operands any
  int chunk = 0;           // keys that a pipeline stage holds
  int warps = 0;           // of the block of threads
  int depth = 0;           // pipeline depth: the stages of a slice's ring buffer; with direct operands, chunks in a warp's registers
  int vector = 1;          // neighbouring results that one step of the epilogue takes
  int passes = 1;          // of float32: as `Mma` has them
  bool bounded = false;    // of the keys some are left out, by numbers of the call
  bool part = false;       // the keys are a part of all: the results are its maxima and totals, and sums that are not divided
};

// What takes a part of the keys: take(row, maximum, total) the largest score of each row, or `lowest` if that is more, and the total of
// the powers relative to it; the epilogue the weighted sums.
template <class Take>
struct KeyPart {
  float lowest;
  const Take& take;
};
template <class Take>
__device__ __forceinline__ KeyPart<Take> key_part(float lowest, const Take& take) {
  return {lowest, take};
}
// The largest score of a row before any key.
template <class Take>
__device__ __forceinline__ float lowest_of(const KeyPart<Take>& part) { return part.lowest; }
__device__ __forceinline__ float lowest_of(float) { return -MT_INF; }

// The power of a score times `factor`, relative to what `from` is the `origin_of`. With one multiplication, unless the EXACT difference comes
// first: of scores that are FAR from 0, such as masked ones, LOG2_E times a score is rounded to another power, or is -inf.
constexpr float FAR = 1024.f;
template <bool EXACT>
__device__ __forceinline__ float origin_of(float score) { return EXACT ? score : score * LOG2_E; }
template <bool EXACT>
__device__ __forceinline__ float power_of(float score, float factor, float from) {
  if constexpr (EXACT) return ptx::exp2_fast(fmaf(score, factor, -from) * LOG2_E);
  return ptx::exp2_fast(fmaf(score, factor * LOG2_E, -from));
}

// Split-K within the block: chunk c of the keys belongs to slice c % SLICES. The warps of a slice share a ring buffer of DEPTH
// stages of keys and values. With mma.sync a slice is one warp, which has all rows of the block. With wgmma a slice is the
// warpgroups that the rows of the block need, each warp with 16 rows.
template <AttentionConfig CONFIG, class Query_, class Key_, class Value_>
struct Attention {
  using Query = Query_;
  using Key = Key_;
  using Value = Value_;
  using T = typename Query::T;
  static_assert(same<T, typename Key::T> && same<T, typename Value::T>, "Queries, keys and values must have the same element type.");
  static_assert(CONFIG.kernel == Kernel::MMA || CONFIG.kernel == Kernel::WGMMA,
                "Attention needs tensor cores: Kernel::MMA or Kernel::WGMMA.");
  static constexpr bool WARPGROUPS = CONFIG.kernel == Kernel::WGMMA;  // the operands are read by warpgroups
  static constexpr int FEATURES = CONFIG.features, WIDTH = CONFIG.columns, KEYS = CONFIG.keys;
  static constexpr int COLUMNS = ceil_div(WIDTH, 8) * 8;  // of tiles; those beyond the width are zeros, which nobody stores
  static constexpr int BLOCK_M = CONFIG.block_m, CHUNK = CONFIG.chunk, WARPS = CONFIG.warps;
  static constexpr int DEPTH = CONFIG.depth, VECTOR = CONFIG.vector, PASSES = CONFIG.passes;
  static constexpr bool BOUNDED = CONFIG.bounded, PART = CONFIG.part;
  static_assert(FEATURES > 0 && WIDTH > 0 && KEYS > 0, "Attention needs its numbers of `features`, `columns` and `keys`.");
  static_assert(BLOCK_M > 0 && CHUNK > 0 && WARPS > 0, "Attention needs `block_m`, `chunk` and `warps`.");
  static constexpr bool DIRECT = Key::COPY == Copy::DIRECT;  // no ring: see attend_direct.cuh
  static_assert((Query::COPY == Copy::DIRECT) == DIRECT && (Value::COPY == Copy::DIRECT) == DIRECT,
                "Queries, keys and values are all direct operands, or none of them is.");
  static_assert(DEPTH >= (DIRECT ? 1 : 2), "Attention needs a pipeline `depth` of at least two stages; one chunk with direct operands.");
  static constexpr int THREADS = WARPS * 32;
  static constexpr int WARP_M = WARPGROUPS ? 16 : ceil_div(BLOCK_M, 16) * 16;
  static constexpr int SLICE_WARPS = WARPGROUPS ? BLOCK_M / WARP_M : 1, SLICE_THREADS = SLICE_WARPS * 32, SLICES = WARPS / SLICE_WARPS;
  static constexpr int CHUNKS = ceil_div(KEYS, CHUNK);
  static constexpr int STEP = 32 / int(sizeof(T)), PIECE = 32;  // of k in an instruction; features of a sum in three passes
  static_assert((DIRECT || BLOCK_M % 16 == 0) && CHUNK % STEP == 0,
                "Tensor cores compute tiles of 16 rows and 16 keys; 8 keys of float32.");
  static_assert(WIDTH % VECTOR == 0, "A row of the result must be a whole number of the epilogue's vectors.");
  static_assert(WARPS % SLICE_WARPS == 0 && SLICES < 16, "The slices must share the warps evenly, and a block has 15 named barriers.");
  static_assert(!WARPGROUPS || BLOCK_M % 64 == 0, "Kernel::WGMMA needs multiples of 64 rows.");
  static_assert(!WARPGROUPS || (Query::K_MAJOR && Key::K_MAJOR && !Value::K_MAJOR),
                "Kernel::WGMMA needs queries and keys whose features, and values whose columns, are neighbours.");

  static_assert(!DIRECT || (!WARPGROUPS && Query::K_MAJOR && Key::K_MAJOR && !Value::K_MAJOR && FEATURES % 32 == 0 && COLUMNS % 32 == 0),
                "Direct operands are of mma.sync, features and columns are neighbours, and there are multiples of 32 of both.");
  static constexpr int COLUMN_RUN = COLUMNS % 64 == 0 ? 8 : 4;  // of direct operands: neighbours that a lane loads

  static_assert(sizeof(T) == 2 || (!WARPGROUPS && !DIRECT), "float32 is streamed by mma.sync, through shared memory.");
  // Warpgroups read features and columns in panels of 64, one behind the other; what the last one has beyond them are zeros.
  static constexpr int PANEL_FEATURES = WARPGROUPS ? 64 : ceil_div(FEATURES, STEP) * STEP, PANEL_COLUMNS = WARPGROUPS ? 64 : COLUMNS;
  static constexpr int FEATURE_PANELS = ceil_div(FEATURES, PANEL_FEATURES), COLUMN_PANELS = ceil_div(COLUMNS, PANEL_COLUMNS);
  using QueryPanel = Panel<T, PanelConfig{.rows = BLOCK_M, .k = PANEL_FEATURES, .k_major = Query::K_MAJOR}>;
  using KeyPanel = Panel<T, PanelConfig{.rows = CHUNK, .k = PANEL_FEATURES, .k_major = Key::K_MAJOR}>;
  using ValuePanel = Panel<T, PanelConfig{.rows = PANEL_COLUMNS, .k = CHUNK, .k_major = Value::K_MAJOR}>;
  using QueryCopies = PanelCopies<QueryPanel, CopyConfig{.copy = Query::COPY, .vector = Query::VECTOR, .rows = BLOCK_M, .k = FEATURES,
                                                         .threads = THREADS, .check_rows = Query::CHECK_ROWS}>;
  using KeyCopies = PanelCopies<KeyPanel, CopyConfig{.copy = Key::COPY, .vector = Key::VECTOR, .rows = CHUNK, .k = FEATURES,
                                                     .threads = SLICE_THREADS, .check_rows = KEYS % CHUNK != 0}>;
  using ValueCopies = PanelCopies<ValuePanel, CopyConfig{.copy = Value::COPY, .vector = Value::VECTOR, .rows = PANEL_COLUMNS,
                                                         .k = KEYS, .threads = SLICE_THREADS, .check_rows = WIDTH % PANEL_COLUMNS != 0}>;
  using Scores = Mma<T, WarpTile{.m = WARP_M, .n = CHUNK, .k = PANEL_FEATURES, .piece = PIECE}, QueryPanel, KeyPanel, PASSES>;

  static __host__ __device__ constexpr int lined(int bytes) { return ceil_div(bytes, 128) * 128; }
  static constexpr int QUERY_BYTES = lined(FEATURE_PANELS * QueryPanel::BYTES);
  static constexpr int KEY_BYTES = lined(FEATURE_PANELS * KeyPanel::BYTES);
  static constexpr int STAGE_BYTES = KEY_BYTES + lined(COLUMN_PANELS * ValuePanel::BYTES);
  // The partial result of a slice: for each row the weighted sums, the largest score and the total of the powers.
  static constexpr int PITCH = COLUMNS + (COLUMNS % 16 == 0 ? 8 : 0);
  static constexpr int PARTIAL = ceil_div(BLOCK_M * (PITCH + 2), 4) * 4;
  static constexpr int RING_BYTES = DIRECT ? 0 : QUERY_BYTES + SLICES * DEPTH * STAGE_BYTES;
  static constexpr int BYTES = max_of(RING_BYTES, SLICES * PARTIAL * 4);
};

// A thread's warp and lane, its slice and its number there, the first row of its warp, and the number of chunks of its slice: of those
// that hold keys from `key0` on and before `key1`, the first of which is `chunk0`. iterations: the most chunks of any slice.
template <class S>
struct ThreadRole {
  int warp, lane, slice, thread, row, chunk0, count, iterations;

  __device__ __forceinline__ ThreadRole(int key0, int key1) {
    const int all = threadIdx.x;
    warp = ptx::uniform(all / 32), lane = all % 32;
    slice = warp / S::SLICE_WARPS, thread = all - slice * S::SLICE_THREADS, row = warp % S::SLICE_WARPS * S::WARP_M;
    chunk0 = S::BOUNDED ? key0 / S::CHUNK : 0;
    const int chunks = S::BOUNDED ? ceil_div(key1, S::CHUNK) - chunk0 : S::CHUNKS;
    count = slice < chunks ? (chunks - slice + S::SLICES - 1) / S::SLICES : 0;
    iterations = ceil_div(chunks, S::SLICES);
  }
  // The first key of chunk `t` of the slice.
  __device__ __forceinline__ int first(int t) const { return (chunk0 + slice + t * S::SLICES) * S::CHUNK; }
  __device__ __forceinline__ char* ring(char* shared) const {
    return shared + S::QUERY_BYTES + slice * (S::DEPTH * S::STAGE_BYTES);
  }
};

// Scores that are their products times a positive factor. The multiplication is a part of the power's.
struct Scaled {
  float factor;
};
template <class Score>
__device__ __forceinline__ float factor_of(const Score&) {
  return 1.f;
}
__device__ __forceinline__ float factor_of(const Scaled& score) { return score.factor; }

// The scores of a row: masked(key, product) of any key; plain(key, product) where whole(first, last) holds of keys that it is among.
struct Nowhere {
  __device__ __forceinline__ bool operator()(int, int) const { return false; }
};
template <class Masked, class Plain = Nowhere, class Whole = Nowhere>
struct RowScore {
  Masked masked;
  Plain plain = {};
  Whole whole = {};
  static constexpr bool ENDS = !same<Whole, Nowhere>;
};
template <class Masked>
RowScore(Masked) -> RowScore<Masked>;
template <class Masked, class Plain, class Whole>
RowScore(Masked, Plain, Whole) -> RowScore<Masked, Plain, Whole>;

// Replaces the products of a warp's rows, from `row0` on, and the keys from `first` on by their scores, but for the factor of
// `Scaled`. A score without a key is -inf.
template <class S, class Score>
__device__ __forceinline__ void to_scores(typename S::Scores::Accumulator& x, const Score& score, int row0, int m1, int first,
                                          int lane) {
  constexpr bool RAGGED = S::KEYS % S::CHUNK != 0;  // the last chunk has columns without a key
  if constexpr (!same<Score, Scaled>) {
#pragma unroll
    for (int i = 0; i < S::Scores::TM; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const auto row = score(min_of(row0 + i * 16 + h * 8 + lane / 4, m1 - 1));
        auto each = [&](const auto& of_key) {
#pragma unroll
          for (int j = 0; j < S::Scores::TN; ++j)
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; ++e) {
              int at = first + j * 8 + (lane & 3) * 2 + e % 2;
              x.c[i][j][e] = of_key(RAGGED ? min_of(at, S::KEYS - 1) : at, x.c[i][j][e]);
            }
        };
        if constexpr (decltype(row)::ENDS) {
          const bool whole = first + S::CHUNK <= S::KEYS && row.whole(first, first + S::CHUNK - 1);
          if (__all_sync(0xffffffffu, whole)) {
            each(row.plain);
            continue;
          }
        }
        each(row.masked);
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

// The online softmax of one warp for its rows: the largest score of each so far, the total of the powers relative to it, and the
// weighted sums. A thread has rows lane / 4 and lane / 4 + 8 of each 16. A chunk's scores go through `update_maximum`,
// `rescale_sums` where that returns true, and `exponentiate`. Then they are powers, the left operand of the next product.
template <class S>
struct OnlineSoftmax {
  static constexpr int TM = S::WARP_M / 16, TN = S::COLUMNS / 8, TS = S::CHUNK / 8;
  using T = typename S::T;
  // Powers up to 2^8, which float16 holds as precisely as those up to 1. Of a part the largest score itself is a result.
  static constexpr float RESCALE_THRESHOLD = S::PART ? 0.f : 5.5f;
  float maximum[TM][2], total[TM][2], rescale[TM][2], sums[TM][TN][4];

  __device__ __forceinline__ explicit OnlineSoftmax(float lowest) {
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) maximum[i][h] = lowest, total[i][h] = 0;
#pragma unroll
      for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;
    }
  }

  // Raises `maximum` where a chunk's scores are larger. Returns whether it did: then the sums must be rescaled. As in
  // FlashAttention-4 it is not the largest score, but at most RESCALE_THRESHOLD below it, so that this is rare. A power is then at
  // most e^RESCALE_THRESHOLD.
  __device__ __forceinline__ bool update_maximum(const typename S::Scores::Accumulator& scores, float factor) {
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
        beyond |= most[i][h] > maximum[i][h] + RESCALE_THRESHOLD;
      }
    if (!__any_sync(0xffffffffu, beyond)) return false;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float next = fmaxf(maximum[i][h], most[i][h]);
        next = fmaxf(next, shuffled(next, 1));
        next = fmaxf(next, shuffled(next, 2));
        rescale[i][h] = ptx::exp2_fast((maximum[i][h] - origin(next)) * LOG2_E);
        maximum[i][h] = next;
        total[i][h] *= rescale[i][h];
      }
    return true;
  }
  __device__ __forceinline__ void rescale_sums() {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][j][e] *= rescale[i][e / 2];
  }

  // Replaces scores by their powers, relative to `maximum`, and adds these to `total`. A part of the keys may well have masked ones alone.
  __device__ __forceinline__ void exponentiate(typename S::Scores::Accumulator& scores, float factor) {
    bool far = S::PART;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) far |= fabsf(origin(maximum[i][h])) > FAR;
    if (S::PART || __any_sync(0xffffffffu, far))
      add_powers<true>(scores, factor);
    else
      add_powers<false>(scores, factor);
  }
  template <bool EXACT>
  __device__ __forceinline__ void add_powers(typename S::Scores::Accumulator& scores, float factor) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float from = origin_of<EXACT>(origin(maximum[i][h])), added = 0;
#pragma unroll
        for (int j = 0; j < TS; ++j)
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; ++e) {
            float power = power_of<EXACT>(scores.c[i][j][e], factor, from);
            scores.c[i][j][e] = power;
            added += power;
          }
        total[i][h] += added;
      }
  }

  // The powers of keys [k, k + 16) of a chunk as the left operand of mma.m16n8k16.
  static __device__ __forceinline__ void operand(u32 (&a)[4], const typename S::Scores::Accumulator& powers, int i, int k) {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float* pair = powers.c[i][k / 8 + q / 2] + q % 2 * 2;
      a[q] = u32(bits(pair[0])) | u32(bits(pair[1])) << 16;
    }
  }

  // The same of keys [k, k + 8) for m16n8k8: place t of the first four is key 2 * t, of the last four 2 * t + 1.
  static __device__ __forceinline__ void wide_operand(u32 (&a)[4], const typename S::Scores::Accumulator& powers, int i, int k) {
    const float(&c)[4] = powers.c[i][k / 8];
    a[0] = __float_as_uint(c[0]), a[1] = __float_as_uint(c[2]), a[2] = __float_as_uint(c[1]), a[3] = __float_as_uint(c[3]);
  }

  // Stores this warp's partial result, at `partials` in shared memory.
  __device__ __forceinline__ void store_partial(float* partials, const ThreadRole<S>& role) const {
    float* own = partials + role.slice * S::PARTIAL;
    int lane = role.lane;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float all = total[i][h];
        all += shuffled(all, 1);
        all += shuffled(all, 2);
        int row = role.row + i * 16 + h * 8 + lane / 4;
        if (S::BLOCK_M % 16 != 0 && row >= S::BLOCK_M) continue;
        float* at = own + row * S::PITCH;
        if constexpr (S::DIRECT) {
          constexpr int RUN = S::COLUMN_RUN;
#pragma unroll
          for (int j = 0; j < TN; j += RUN)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              Pack<float, RUN> run;
#pragma unroll
              for (int k = 0; k < RUN; ++k) run[k] = sums[i][j + k][2 * h + e];
              store(at + j * 8 + ((lane & 3) * 2 + e) * RUN, run);
            }
        } else {
#pragma unroll
          for (int j = 0; j < TN; ++j)
            store(at + j * 8 + (lane & 3) * 2, Pack<float, 2>{{sums[i][j][2 * h], sums[i][j][2 * h + 1]}});
        }
        if ((lane & 3) == 0) {
          own[S::BLOCK_M * S::PITCH + row] = maximum[i][h];
          own[S::BLOCK_M * (S::PITCH + 1) + row] = all;
        }
      }
  }

 private:
  // The score that powers are relative to: 0 as long as all scores are -inf.
  static __device__ __forceinline__ float origin(float maximum) { return maximum == -MT_INF ? 0.f : maximum; }
  static __device__ __forceinline__ float shuffled(float x, int mask) {
    return __uint_as_float(__shfl_xor_sync(0xffffffffu, __float_as_uint(x), mask));
  }
  static __device__ __forceinline__ u16 bits(float x) { return cast<T>(x).bits; }
};

}  // namespace mt
