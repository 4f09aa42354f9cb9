// Softmax-weighted sums of values, streamed along the keys: scores live in registers alone (FlashAttention, Dao et al., 2022).
//
//   out[row, column] = sum over keys of softmax(score(row, key, query[row] . key[key])) * value[key, column]
//
// A block of rows is one block's task. The warps deal the chunks of keys among themselves; each keeps, for all rows, the
// largest score that it has seen, the sum of the powers relative to it and the weighted sum of the values. No warp waits for
// another until the end, where these meet in shared memory.
#pragma once
#include "cuda/contract.cuh"
#include "cuda/math.cuh"

namespace mt {

inline constexpr float LOG2_E = 1.4426950408889634f;

template <class Query_, class Key_, class Value_, int FEATURES_, int COLUMNS_, int KEYS_,
          int BLOCK_M_, int CHUNK_, int WARPS_, int RING_, int WIDTH_>
struct Attention {
  using Query = Query_;
  using Key = Key_;
  using Value = Value_;
  using T = typename Query::T;
  static_assert(same<T, typename Key::T> && same<T, typename Value::T>, "all operands have one element type");
  static constexpr int FEATURES = FEATURES_, COLUMNS = COLUMNS_, KEYS = KEYS_;
  static constexpr int BLOCK_M = BLOCK_M_, CHUNK = CHUNK_, WARPS = WARPS_, RING = RING_, WIDTH = WIDTH_;
  static constexpr int THREADS = WARPS * 32;
  static constexpr int DEEP = ceil_div(FEATURES, 16) * 16;
  static constexpr int CHUNKS = ceil_div(KEYS, CHUNK);
  static_assert(BLOCK_M % 16 == 0 && CHUNK % 16 == 0 && COLUMNS % 8 == 0, "whole tiles of the tensor cores");
  static_assert(RING >= 2 && COLUMNS % WIDTH == 0, "a ring has two chunks at least, a row whole stores");

  using QueryPanel = Panel<T, BLOCK_M, DEEP, Query::K_MAJOR>;
  using KeyPanel = Panel<T, CHUNK, DEEP, Key::K_MAJOR>;
  using ValuePanel = Panel<T, COLUMNS, CHUNK, Value::K_MAJOR>;
  using QueryIntake = Intake<QueryPanel, T, Query::K_MAJOR, Query::COPY, Query::VECTOR, BLOCK_M,
                             FEATURES, DEEP, THREADS, Query::CHECK_ROWS>;
  using KeyIntake = Intake<KeyPanel, T, Key::K_MAJOR, Key::COPY, Key::VECTOR, CHUNK, FEATURES, DEEP, 32,
                           KEYS % CHUNK != 0>;
  using ValueIntake = Intake<ValuePanel, T, Value::K_MAJOR, Value::COPY, Value::VECTOR, COLUMNS, KEYS, CHUNK, 32, false>;
  using Scores = Mma<T, BLOCK_M, CHUNK, DEEP, QueryPanel, Query::K_MAJOR, KeyPanel, Key::K_MAJOR>;

  static __host__ __device__ constexpr int lined(int bytes) { return ceil_div(bytes, 128) * 128; }
  static constexpr int QUERY_BYTES = lined(QueryPanel::BYTES);
  static constexpr int KEY_BYTES = lined(KeyPanel::BYTES);
  static constexpr int STAGE_BYTES = KEY_BYTES + lined(ValuePanel::BYTES);
  // What the warps have found, each: the sums of a row, its largest score, its total.
  static constexpr int PITCH = COLUMNS + (COLUMNS % 16 == 0 ? 8 : 0);
  static constexpr int FOUND_BYTES = WARPS * BLOCK_M * (PITCH + 2) * 4;
  static constexpr int BYTES = max_of(QUERY_BYTES + WARPS * RING * STAGE_BYTES, FOUND_BYTES);
};

// Brings a panel in with the threads of `Intake`: copies are issued, evaluated values are stored at once.
template <class Side, class Intake, class Operand>
__device__ __forceinline__ void take_in(char* panel, const Operand& operand, int row0, int row_end, int k0, int thread) {
  if constexpr (Side::COPY == Copy::ASYNC) {
    Intake::issue(panel, operand, row0, row_end, k0, thread);
  } else {
    typename Intake::Held held;
    Intake::evaluate(held, operand, row0, row_end, k0, thread);
    Intake::put(panel, held, thread);
  }
}

// The largest scores, totals and weighted sums of one warp for BLOCK_M rows; a thread has rows lane / 4 and + 8 of each 16.
template <class S>
struct Stream {
  static constexpr int TM = S::BLOCK_M / 16, TN = S::COLUMNS / 8, TS = S::CHUNK / 8;
  using T = typename S::T;
  static constexpr float SLACK = 5.5f;  // powers up to 2^8, which float16 holds as precisely as those up to 1
  float top[TM][2], total[TM][2], sums[TM][TN][4];

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

  // Takes in the scores of a chunk, which become powers relative to `top`. That is not the largest score but no less than
  // SLACK below it, so that sums are seldom scaled anew (FlashAttention-4): a power of two at most 2^(SLACK * log2 e).
  __device__ __forceinline__ void weigh(typename S::Scores::Accumulator& scores) {
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
        beyond |= most[i][h] > top[i][h] + SLACK;
      }
    if (__any_sync(0xffffffffu, beyond)) raise(most);
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float from = origin(top[i][h]) * LOG2_E, added = 0;
#pragma unroll
        for (int j = 0; j < TS; ++j)
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; ++e) {
            float power = ptx::exp2_fast(fmaf(scores.c[i][j][e], LOG2_E, -from));
            scores.c[i][j][e] = power;
            added += power;
          }
        total[i][h] += added;
      }
  }

  // Adds the values of a chunk, weighted by its powers: sums of products are the left operand of the next product as they are.
  __device__ __forceinline__ void mix(const typename S::Scores::Accumulator& powers, const char* panel, int lane) {
    constexpr bool K_MAJOR = S::Value::K_MAJOR;
    int low = lane & 7, bit3 = (lane >> 3) & 1, bit4 = lane >> 4;
    Rows<typename S::ValuePanel, K_MAJOR> rows(panel, K_MAJOR ? bit4 * 8 + low : bit4 * 8,
                                               K_MAJOR ? bit3 * 8 : bit3 * 8 + low);
#pragma unroll
    for (int k = 0; k < S::CHUNK; k += 16) {
      u32 a[TM][4], b[TN][2];
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const float* pair = powers.c[i][k / 8 + q / 2] + q % 2 * 2;
          a[i][q] = u32(bits(pair[0])) | u32(bits(pair[1])) << 16;
        }
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
        for (int j = 0; j < TN; ++j) ptx::mma_16816<T>(sums[i][j], a[i], b[j]);
    }
  }

  // Writes what this warp has found where all of them meet.
  __device__ __forceinline__ void leave(float* found, int warp, int lane) {
    float* own = found + warp * (S::BLOCK_M * (S::PITCH + 2));
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float all = total[i][h];
        all += shuffled(all, 1);
        all += shuffled(all, 2);
        int row = i * 16 + h * 8 + lane / 4;
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

  // Makes the largest of `most` and of what came before the new `top`.
  __device__ __forceinline__ void raise(float (&most)[TM][2]) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float next = fmaxf(top[i][h], most[i][h]);
        next = fmaxf(next, shuffled(next, 1));
        next = fmaxf(next, shuffled(next, 2));
        float fade = ptx::exp2_fast((top[i][h] - origin(next)) * LOG2_E);
        top[i][h] = next;
        total[i][h] *= fade;
#pragma unroll
        for (int j = 0; j < TN; ++j) sums[i][j][2 * h] *= fade, sums[i][j][2 * h + 1] *= fade;
      }
  }

  static __device__ __forceinline__ float shuffled(float x, int mask) {
    return __uint_as_float(__shfl_xor_sync(0xffffffffu, __float_as_uint(x), mask));
  }
  static __device__ __forceinline__ u16 bits(float x) { return cast<T>(x).bits; }
};

// Rows [m0, m1), at most a block, by all threads of the block. score(row, key, product) is the score of a product. A total
// below `least` counts as that. The results go to epilogue(row, column, Pack<float, WIDTH>, fetch(row, column)). Shared
// memory is free to use for others when this returns.
template <class S, class Query, class Key, class Value, class Score, class Fetch, class Epilogue>
__device__ __forceinline__ void attend(char* shared, int m0, int m1, const Query& query, const Key& key,
                                       const Value& value, const Score& score, float least,
                                       const Fetch& fetch, const Epilogue& epilogue) {
  constexpr int RING = S::RING;
  constexpr bool RAGGED = S::KEYS % S::CHUNK != 0;  // the last chunk has columns without a key
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  char* ring = shared + S::QUERY_BYTES + warp * (RING * S::STAGE_BYTES);
  int count = warp < S::CHUNKS ? (S::CHUNKS - warp + S::WARPS - 1) / S::WARPS : 0;
  auto begin = [&](int t) {
    char* to = ring + t % RING * S::STAGE_BYTES;
    int first = (warp + t * S::WARPS) * S::CHUNK;
    take_in<typename S::Key, typename S::KeyIntake>(to, key, first, S::KEYS, 0, lane);
    take_in<typename S::Value, typename S::ValueIntake>(to + S::KEY_BYTES, value, 0, S::COLUMNS, first, lane);
  };
  take_in<typename S::Query, typename S::QueryIntake>(shared, query, m0, m1, 0, threadIdx.x);
  ptx::copy_async_commit();
#pragma unroll 1
  for (int t = 0; t < RING - 1; ++t) {
    if (t < count) begin(t);
    ptx::copy_async_commit();
  }
  ptx::copy_async_wait<RING - 1>();
  block_barrier();  // the queries are in

  Stream<S> stream;
#pragma unroll 1
  for (int t = 0; t < count; ++t) {
    ptx::copy_async_wait<RING - 2>();
    __syncwarp();  // chunk t is in, chunk t - 1 is used up
    if (t + RING - 1 < count) begin(t + RING - 1);
    ptx::copy_async_commit();
    const char* chunk = ring + t % RING * S::STAGE_BYTES;
    typename S::Scores::Accumulator scores;
    S::Scores::clear(scores);
    S::Scores::step(scores, shared, chunk, 0, 0, lane);
    int first = (warp + t * S::WARPS) * S::CHUNK;
#pragma unroll
    for (int i = 0; i < S::Scores::TM; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        int row = min_of(m0 + i * 16 + h * 8 + lane / 4, m1 - 1);
#pragma unroll
        for (int j = 0; j < S::Scores::TN; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = scores.c[i][j][2 * h + e];
            int at = first + j * 8 + (lane & 3) * 2 + e;
            x = score(row, RAGGED ? min_of(at, S::KEYS - 1) : at, x);
          }
      }
    if (RAGGED && first + S::CHUNK > S::KEYS) {
#pragma unroll
      for (int i = 0; i < S::Scores::TM; ++i)
#pragma unroll
        for (int j = 0; j < S::Scores::TN; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (first + j * 8 + (lane & 3) * 2 + e % 2 >= S::KEYS) scores.c[i][j][e] = -MT_INF;
    }
    stream.weigh(scores);
    stream.mix(scores, chunk + S::KEY_BYTES, lane);
  }

  ptx::copy_async_wait<0>();
  block_barrier();  // queries and rings are used up
  float* found = reinterpret_cast<float*>(shared);
  stream.leave(found, warp, lane);
  block_barrier();
  constexpr int OWN = S::BLOCK_M * (S::PITCH + 2), ACROSS = S::COLUMNS / S::WIDTH, TOTAL = S::BLOCK_M * ACROSS;
  constexpr int USED = min_of(S::WARPS, S::CHUNKS);  // warps that had keys
#pragma unroll 2
  for (int e = threadIdx.x; e < TOTAL; e += S::THREADS) {
    int m = int(unsigned(e) / ACROSS), n = int(unsigned(e) % ACROSS) * S::WIDTH;
    if (m0 + m >= m1) break;
    const float* tops = found + S::BLOCK_M * S::PITCH + m;
    float top = -MT_INF, total = 0;
#pragma unroll
    for (int w = 0; w < USED; ++w) top = fmaxf(top, tops[w * OWN]);
    float from = top == -MT_INF ? 0.f : top * LOG2_E;
    Pack<float, S::WIDTH> sum{};
#pragma unroll
    for (int w = 0; w < USED; ++w) {
      float weight = ptx::exp2_fast(fmaf(tops[w * OWN], LOG2_E, -from));
      total += weight * tops[w * OWN + S::BLOCK_M];
      Pack<float, S::WIDTH> part = load<S::WIDTH>(found + w * OWN + m * S::PITCH + n);
#pragma unroll
      for (int v = 0; v < S::WIDTH; ++v) sum[v] += weight * part[v];
    }
    float scale = 1.f / (total < least ? least : total);
#pragma unroll
    for (int v = 0; v < S::WIDTH; ++v) sum[v] *= scale;
    epilogue(m0 + m, n, sum, fetch(m0 + m, n));
  }
  block_barrier();
}

}  // namespace mt
