// Lists of the terms of each row, in memory: where each row's begin, and the terms in the order of the rows.
#pragma once
#include "cuda/device/scatter.cuh"

namespace mt {

// A block makes the lists of the `rows` rows from `low` on. It reads the rows of all `count` terms twice, as `TermLists` does: first it counts
// the terms of its rows, and those of all rows before, so that it knows where its lists begin; then it writes them. No other block is waited for.
//
// fetch, position, check: as in TermLists. begin(row, at): the list of a row, from 0 on, begins at `at`. put(at, term): what stands there.
template <int THREADS, int ROWS, int CAPACITY, int LOADS>
struct RowLists {
  using Lists = TermLists<THREADS, ROWS, CAPACITY, LOADS, 1>;
  static constexpr int WARPS = THREADS / 32, OWN = ceil_div(Lists::BYTES, 4) * 4;
  static constexpr int BYTES = OWN + 4 * (ROWS + WARPS);

  template <class Index, class Fetch, class Position, class Check, class Begin, class Put>
  static __device__ __forceinline__ void run(
      char* shared, Index low, int rows, int count, Fetch fetch, Position position, Check check, Begin begin, Put put) {
    int* const next = reinterpret_cast<int*>(shared + OWN);  // of each row: terms, then where the next one goes
    int* const total = next + ROWS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    block_barrier();  // what lay there is read
    for (int i = threadIdx.x; i < rows; i += THREADS) next[i] = 0;
    const auto counted = [&](const typename Lists::Memory& m) {
      for (int row = threadIdx.x; row < rows; row += THREADS) next[row] += Lists::begin(m, row + 1) - Lists::begin(m, row);
    };
    int before = Lists::rounds(shared, low, rows, count, fetch, position, check, counted);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) before += __shfl_xor_sync(0xffffffffu, before, step);
    if (lane == 0) total[warp] = before;
    block_barrier();
    before = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) before += total[w];
    block_barrier();
    exclusive_sums<THREADS>(next, rows, before, total);
    for (int i = threadIdx.x; i < rows; i += THREADS) begin(i, next[i]);
    Lists::rounds(shared, low, rows, count, fetch, position, check, [&](const typename Lists::Memory& m) {
      const int all = Lists::begin(m, rows);
      for (int k = threadIdx.x; k < all; k += THREADS) {
        int row = 0;  // the last one that begins at k or before
        for (int end = rows; end - row > 1;) {
          const int middle = (row + end) / 2;
          (Lists::begin(m, middle) <= k ? row : end) = middle;
        }
        put(next[row] + k - Lists::begin(m, row), m.sorted[k]);
      }
      block_barrier();
      counted(m);
    });
  }
};

}  // namespace mt
