// Sums at computed positions, in order: lists of the terms of each of a block's positions, made on chip.
#pragma once
#include "cuda/device/barrier.cuh"
#include "cuda/device/types.cuh"

namespace mt {

// `start` and the sum of all values before it for each of `count` values, in their place. total: an int for each warp. A barrier behind it.
template <int THREADS, class Value>
static __device__ __forceinline__ void exclusive_sums(Value* values, int count, int start, int* total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int each = ceil_div(count, THREADS), begin = min_of(int(threadIdx.x) * each, count);
  const int end = min_of(begin + each, count);
  int own = 0;
  for (int i = begin; i < end; ++i) own += values[i];
  int before = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, before, step);
    if (lane >= step) before += other;
  }
  if (lane == 31) total[warp] = before;
  before += start - own;
  block_barrier();
#pragma unroll
  for (int w = 0; w < THREADS / 32; ++w) before += w < warp ? total[w] : 0;
  for (int i = begin; i < end; ++i) {
    const int value = values[i];
    values[i] = Value(before);
    before += value;
  }
  block_barrier();
}

// A block with the `rows` (at most ROWS) positions from `low` on reads the positions of `count` terms, LOADS a thread at once.
// Each warp has a stretch of the terms and keeps those that fall into the block's rows, in their order; where a warp finds more than CAPACITY,
// all begin again with shorter stretches. A stable counting sort then puts the terms in the order of the rows: within a row by warps, and each
// warp's as it found them. LANES threads (a power of two) take a row.
//
// fetch(e): what the position of term e < count is read from; position(e, fetch(e)): the position, or -1 where there is none; then check(e, fetch(e))
// fails. One branch for several terms: ptxas moves reads behind branches that do not depend on them, so that a thread would wait for each. add(row, terms, first, last): adds to a row the terms terms[first], ..., terms[last - 1], at least
// one, in this order; the threads with equal threadIdx.x / LANES call it together. shared: BYTES bytes.
template <int THREADS, int ROWS, int CAPACITY, int LOADS, int LANES>
struct TermLists {
  static constexpr int WARPS = THREADS / 32, ALL = WARPS * CAPACITY, COUNTS = ROWS * WARPS;
  static constexpr int BYTES = 8 * WARPS + ALL * (4 + 4 + 2) + COUNTS * 2;
  static_assert(THREADS % 32 == 0 && is_power_of_two(LANES) && LANES <= THREADS, "A row's lanes divide the block.");
  static_assert(LOADS <= 32 && ALL < 65536 && ROWS < 65536, "Counts and rows are 16-bit numbers.");

  struct Memory {
    int *found, *total;  // of each warp: terms that it has found; of its part of the counts, the sum
    int *terms, *sorted;
    u16 *row, *counts;  // counts[row * WARPS + warp]: terms of a warp, then where they begin, then where they end
  };
  static __device__ __forceinline__ Memory memory(char* shared) {
    int* const words = reinterpret_cast<int*>(shared);
    u16* const halves = reinterpret_cast<u16*>(words + 2 * WARPS + 2 * ALL);
    return {words, words + WARPS, words + 2 * WARPS, words + 2 * WARPS + ALL, halves, halves + ALL};
  }

  // Where the terms of a row begin in the sorted ones; those of the one before end there.
  static __device__ __forceinline__ int begin(const Memory& m, int row) { return row ? m.counts[row * WARPS - 1] : 0; }

  template <class Index, class Fetch, class Position, class Check, class Add>
  static __device__ __forceinline__ void run(
      char* shared, Index low, int rows, int count, Fetch fetch, Position position, Check check, Add add) {
    rounds(shared, low, rows, count, fetch, position, check, [&](const Memory& m) {
      for (int row = int(threadIdx.x) / LANES; row < rows; row += THREADS / LANES) {
        const int from = begin(m, row), to = begin(m, row + 1);
        if (from < to) add(row, m.sorted, from, to);
      }
    });
  }

  // All threads call sorted(memory) for one stretch of the terms after the other, where some are in the block's rows. Gives how many of the
  // thread's terms have positions before `low`.
  template <class Index, class Fetch, class Position, class Check, class Sorted>
  static __device__ __forceinline__ int rounds(
      char* shared, Index low, int rows, int count, Fetch fetch, Position position, Check check, Sorted sorted) {
    const Memory m = memory(shared);
    int length = count, before = 0;
    for (int first = 0; first < count;) {
      length = min_of(length, count - first);
      block_barrier();  // the lists before are read
      for (int i = threadIdx.x; i < rows * WARPS; i += THREADS) m.counts[i] = 0;
      const int lower = scan(m, low, rows, first, length, fetch, position, check);
      block_barrier();
      int most = 0, all = 0;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) most = max_of(most, m.found[w]), all += m.found[w];
      if (most > CAPACITY) {
        length = max_of(ALL, length / 4);
        continue;
      }
      first += length;
      before += lower;
      if (all == 0) continue;
      sort(m, rows);
      sorted(m);
    }
    return before;
  }

  // A warp's stretch. It ends early where the warp has found too much. Gives how many of the thread's terms have positions before `low`.
  template <class Index, class Fetch, class Position, class Check>
  static __device__ __forceinline__ int scan(
      const Memory& m, Index low, int rows, int first, int length, Fetch fetch, Position position, Check check) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, each = ceil_div(length, WARPS);
    const int begin = first + warp * each, end = min_of(begin + each, first + length);
    int found = 0, lower = 0;
    for (int start = begin; start < end && found <= CAPACITY; start += 32 * LOADS) {
      decltype(fetch(0)) read[LOADS]{};
#pragma unroll
      for (int i = 0; i < LOADS; ++i) read[i] = fetch(min_of(start + i * 32 + lane, end - 1));
      Index at[LOADS];
      u32 own = 0;
      bool wrong = false;
#pragma unroll
      for (int i = 0; i < LOADS; ++i) {
        const int e = start + i * 32 + lane;
        const Index found_at = position(min_of(e, end - 1), read[i]);
        wrong |= found_at < 0;
        at[i] = found_at - low;
        own |= u32((e < end) & within(at[i], Index(rows))) << i;
        lower += (e < end) & (at[i] < 0);
      }
      if (wrong)
        for (int i = 0; i < LOADS; ++i) check(min_of(start + i * 32 + lane, end - 1), read[i]);
      if (__ballot_sync(0xffffffffu, own != 0) == 0) continue;
#pragma unroll
      for (int i = 0; i < LOADS; ++i) {
        const bool mine = (own >> i & 1) != 0;
        const u32 hits = __ballot_sync(0xffffffffu, mine);
        const int slot = found + __popc(hits & ((1u << lane) - 1));
        if (mine && slot < CAPACITY) {
          m.terms[warp * CAPACITY + slot] = start + i * 32 + lane;
          m.row[warp * CAPACITY + slot] = u16(at[i]);
        }
        found += __popc(hits);
      }
    }
    if (lane == 0) m.found[warp] = found;
    return lower;
  }

  static __device__ __forceinline__ void sort(const Memory& m, int rows) {
    count_or_place<false>(m);
    block_barrier();
    exclusive_sums<THREADS>(m.counts, rows * WARPS, 0, m.total);
    count_or_place<true>(m);
    block_barrier();
  }

  // Each warp's own list, 32 at a time: counts its terms by row, or puts them in their places.
  template <bool PLACE>
  static __device__ __forceinline__ void count_or_place(const Memory& m) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, found = m.found[warp];
    for (int start = 0; start < found; start += 32) {
      const bool is = start + lane < found;
      const int at = warp * CAPACITY + start + lane;
      const int row = is ? int(m.row[at]) : -1 - lane;
      const u32 alike = __match_any_sync(0xffffffffu, row), earlier = alike & ((1u << lane) - 1);
      const int next = is ? m.counts[row * WARPS + warp] : 0;
      if (PLACE && is) m.sorted[next + __popc(earlier)] = m.terms[at];
      __syncwarp();
      if (is && earlier == 0) m.counts[row * WARPS + warp] = u16(next + __popc(alike));
      __syncwarp();
    }
  }
};

}  // namespace mt
