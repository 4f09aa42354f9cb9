// Products of weights that come through a ring on chip with a few vectors.
#pragma once
#include "cuda/device/reduce.cuh"
#include "cuda/device/ring.cuh"

namespace mt {

// sums[r][m] = the lane's columns of row r times those of vector m. The lanes take vectors of 16 bytes in turns. ROW: elements of a row.
template <class T, int ROWS, int M, int COLUMNS, int ROW, int HELD>
__device__ __forceinline__ void gemv(float* sums, const float (&vectors)[M][HELD], const char* chunk) {
  constexpr int V = 16 / int(sizeof(T)), TURNS = HELD / V, WAYS = M == 1 ? 4 : M == 2 ? 2 : 1;
  const int lane = threadIdx.x % 32;
  const T* weights = reinterpret_cast<const T*>(chunk);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    float way[M][WAYS] = {};
#pragma unroll
    for (int j = 0; j < TURNS; ++j) {
      const int column = (j * 32 + lane) * V;
      if (COLUMNS % (32 * V) == 0 || j + 1 < TURNS || column < COLUMNS) {
        const Pack<T, V> w = load<V>(weights + r * ROW + column);
#pragma unroll
        for (int v = 0; v < V; ++v)
#pragma unroll
          for (int m = 0; m < M; ++m) way[m][v % WAYS] += widen(w[v]) * vectors[m][j * V + v];
      }
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
      float total = way[m][0];
#pragma unroll
      for (int i = 1; i < WAYS; ++i) total += way[m][i];
      sums[r * M + m] = total;
    }
  }
}

// A warp's chunks of a task, `rows` neighbours of each of its team's slots, two at a time so that each hides the other's latency. Of the
// task's `SLOTS` slots its team takes every TEAMS-th from number `team` on. inside: bytes of its chunk in a slot. first, step: where the
// sums of the first chunk belong, those of row r and vector m at [r][PARTS][m], and of the next.
template <class T, int ROWS, int M, int COLUMNS, int HELD, int PARTS, int SLOTS, int TEAMS, class Ring>
__device__ __forceinline__ void gemv_chunks(Ring& ring, int team, int inside, const float (&vectors)[M][HELD], float* first, int step) {
  constexpr int SUMS = ROWS * M;
#pragma unroll 1
  for (int slot = team; slot < SLOTS; slot += 2 * TEAMS) {
    const bool two = slot + TEAMS < SLOTS;
    float sums[2 * SUMS];
    const char* const chunk = ring.await(slot) + inside;
    const char* const next = two ? ring.await(slot + TEAMS) + inside : chunk;
    gemv<T, ROWS, M, COLUMNS, COLUMNS * PARTS, HELD>(sums, vectors, chunk);
    gemv<T, ROWS, M, COLUMNS, COLUMNS * PARTS, HELD>(sums + SUMS, vectors, next);
    ring.template release<TEAMS>(slot);
    if (two) ring.template release<TEAMS>(slot + TEAMS);
    across<Sum<float>, 32, 2 * SUMS>(sums, nullptr);
    if (threadIdx.x % 32 == 0)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (i == 0 || two)
#pragma unroll
          for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int m = 0; m < M; ++m) first[r * PARTS * M + m + i * step] = sums[(i * ROWS + r) * M + m];
    first += 2 * step;
  }
  ring.leave(SLOTS);
}

// The sum over the parts of a row.
template <int PARTS, int M>
__device__ __forceinline__ float gemv_total(const float* sums) {
  float total = sums[0];
#pragma unroll
  for (int p = 1; p < PARTS; ++p) total += sums[p * M];
  return total;
}

// Sums across the rows of a matrix: each thread takes its own PACKS-th of every LANES-th row, as the ring brings ROWS of them at a time,
// and leaves the sums of these columns at parts[lane][m]. vectors: [M][SLOTS * ROWS], PITCH elements from one to the next.
template <class T, int PACKS, int LANES, int ROWS, int M, int SLOTS, int PITCH, class Ring, class X>
__device__ __forceinline__ void gemv_columns(Ring& ring, const X* vectors, float* parts) {
  constexpr int V = 16 / int(sizeof(T)), TURNS = (ROWS + LANES - 1) / LANES;
  const int pack = threadIdx.x % PACKS, lane = threadIdx.x < LANES * PACKS ? threadIdx.x / PACKS : LANES - 1;
  float sums[M][V] = {};
#pragma unroll 1
  for (int slot = 0; slot < SLOTS; ++slot) {
    const T* const chunk = reinterpret_cast<const T*>(ring.await(slot));
    const X* const own = vectors + slot * ROWS;
    Pack<T, V> weights[TURNS];
    float factors[M][TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
      const int row = turn * LANES + lane, there = row < ROWS ? row : ROWS - 1;
      weights[turn] = load<V>(chunk + (there * PACKS + pack) * V);
#pragma unroll
      for (int m = 0; m < M; ++m) factors[m][turn] = widen(own[m * PITCH + there]);
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn)
      if ((turn + 1) * LANES <= ROWS || turn * LANES + lane < ROWS)
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int v = 0; v < V; ++v) sums[m][v] += widen(weights[turn][v]) * factors[m][turn];
    ring.template release<1>(slot);
  }
  ring.leave(SLOTS);
  if (threadIdx.x < LANES * PACKS)
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int v = 0; v < V; v += 4)
        store<4>(parts + ((lane * M + m) * PACKS + pack) * V + v, Pack<float, 4>{sums[m][v], sums[m][v + 1], sums[m][v + 2], sums[m][v + 3]});
}

// sums[column][m] = the sum of parts[lane][m][column] over LANES lanes, by as many threads of a warp as there are for each.
template <int THREADS, int LANES, int COLUMNS, int M>
__device__ __forceinline__ void gemv_column_totals(const float* parts, float* sums) {
  constexpr int OUT = COLUMNS * M, MOST = THREADS / OUT;
  constexpr int TEAM = MOST >= 32 ? 32 : MOST >= 16 ? 16 : MOST >= 8 ? 8 : MOST >= 4 ? 4 : MOST >= 2 ? 2 : 1;
#pragma unroll 1
  for (int first = 0; first < OUT; first += THREADS / TEAM) {
    const int n = first + threadIdx.x / TEAM;
    float total[1] = {};
#pragma unroll 8
    for (int turn = 0; turn < LANES; turn += TEAM)
      if (const int lane = turn + threadIdx.x % TEAM; n < OUT && lane < LANES) total[0] += parts[lane * OUT + n];
    across<Sum<float>, TEAM>(total, nullptr);
    if (n < OUT && threadIdx.x % TEAM == 0) sums[n % COLUMNS * M + n / COLUMNS] = total[0];
  }
}

}  // namespace mt
