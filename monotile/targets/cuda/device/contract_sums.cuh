// What becomes of a block's sums in on-chip memory, where a row has a line of S::SUM_PITCH sums in each slice's part.
//
// Results whose rows begin at any alignment, as rows of odd length do, have no vectors at fixed columns. The epilogue takes
// whole vectors all the same and leaves each finished one on chip, in the place of its own sums of the first slice (its cell),
// which no one else reads. Then the block copies row after row, in vectors that begin where the row's address allows.
#pragma once
#include "cuda/device/barrier.cuh"
#include "cuda/device/copy.cuh"

namespace mt {

// Where a thread's turn is within the block, if it has one.
struct Place {
  int m, n;
  bool live;
};

// WIDTH neighbouring sums: `at` is where they are in the first slice's part.
template <class S, int WIDTH>
__device__ __forceinline__ Pack<typename S::Sum, WIDTH> total(const typename S::Sum* at) {
  Pack<typename S::Sum, WIDTH> out = load<WIDTH>(at);
#pragma unroll
  for (int s = 1; s < S::SLICES; ++s) {
    Pack<typename S::Sum, WIDTH> part = load<WIDTH>(at + s * (S::BLOCK_M * S::SUM_PITCH));
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) out[w] += part[w];
  }
  return out;
}

// An epilogue of results that are copied out by rows. vectors(m, n, sums, held, live, cell) stores such results in the cell,
// singles(m, n, sums) where they belong: of the last columns, too few for a vector. rows(cells) calls cells.copy for each result.
template <class Vectors, class Singles, class Rows>
struct ByRows {
  const Vectors& vectors;
  const Singles& singles;
  const Rows& rows;
};
template <class Vectors, class Singles, class Rows>
__device__ __forceinline__ ByRows<Vectors, Singles, Rows> by_rows(const Vectors& vectors, const Singles& singles, const Rows& rows) {
  return {vectors, singles, rows};
}
template <class Epilogue>
inline constexpr bool BY_ROWS = false;
template <class Vectors, class Singles, class Rows>
inline constexpr bool BY_ROWS<ByRows<Vectors, Singles, Rows>> = true;

// What begins `skip` bytes into `low` and ends in `high`.
template <int WORDS>
__device__ __forceinline__ Pack<u32, WORDS> between(const Pack<u32, WORDS>& low, const Pack<u32, WORDS>& high, u32 skip) {
  u32 words[2 * WORDS];
#pragma unroll
  for (int i = 0; i < WORDS; ++i) words[i] = low[i], words[WORDS + i] = high[i];
#pragma unroll
  for (int step = WORDS / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i + step < 2 * WORDS; ++i) words[i] = skip & (4 * step) ? words[i + step] : words[i];
  }
  Pack<u32, WORDS> out;
#pragma unroll
  for (int i = 0; i < WORDS; ++i) out[i] = __funnelshift_r(words[i], words[i + 1], 8 * skip);
  return out;
}

// The finished vectors of a block: the first `rows` rows from row m0 on, `columns` columns (whole vectors) from column n0 on.
template <class S>
struct Cells {
  static constexpr int WIDTH = S::WIDTH, CELL = WIDTH * int(sizeof(typename S::Sum)), LINE = S::SUM_PITCH / WIDTH * CELL;
  static_assert(S::SUM_PITCH % WIDTH == 0, "a line of sums is whole cells");
  char* sums;
  int m0, n0, rows, columns;

  // The results that lie `OFFSET` bytes into their cells; row(m) is where column 0 of row m belongs. Of a row all vectors but one
  // are stored as such, aligned, and before and after these, element by element, as many as one has.
  template <int OFFSET, class Row>
  __device__ __forceinline__ void copy(const Row& row) const {
    copy_vectors<OFFSET>(row);
    copy_ends<OFFSET>(row);
  }

 private:
  // Elements before the first aligned vector.
  template <class T>
  static __device__ __forceinline__ int head(const T* to) {
    return -u32(reinterpret_cast<u64>(to)) / u32(sizeof(T)) % WIDTH;
  }
  __device__ __forceinline__ const char* cell(int m, int n) const { return sums + m * LINE + n / WIDTH * CELL; }

  template <int OFFSET, class Row>
  __device__ __forceinline__ void copy_vectors(const Row& row) const {
    constexpr int ACROSS = S::ACROSS, ROUNDS = ceil_div(S::ROWS * ACROSS, S::THREADS), TURN = 4;
    constexpr int SIZE = sizeof(*row(0)), WORDS = WIDTH * SIZE / 4;
    const unsigned self = S::self();
    auto mine = [&](int round) {
      unsigned e = round * S::THREADS + self;
      int m = int(e / ACROSS), n = int(e % ACROSS) * WIDTH;
      return Place{m, n, m < rows && n + WIDTH < columns};
    };
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round += TURN) {
      Pack<u32, WORDS> low[TURN], high[TURN];
#pragma unroll
      for (int i = 0; i < TURN; ++i) {
        if (Place p = mine(round + i); p.live) {
          auto from = reinterpret_cast<const u32*>(cell(p.m, p.n) + OFFSET);
          low[i] = load<WORDS>(from);
          high[i] = load<WORDS>(from + CELL / 4);
        }
      }
#pragma unroll
      for (int i = 0; i < TURN; ++i) {
        if (Place p = mine(round + i); p.live) {
          auto to = row(m0 + p.m) + n0;
          int skip = head(to);
          store(reinterpret_cast<u32*>(to + p.n + skip), between(low[i], high[i], skip * SIZE));
        }
      }
    }
  }
  template <int OFFSET, class Row>
  __device__ __forceinline__ void copy_ends(const Row& row) const {
    const unsigned self = S::self();
#pragma unroll 1
    for (unsigned e = self; e < S::ROWS * WIDTH; e += S::THREADS) {
      int m = int(e / WIDTH), i = int(e % WIDTH);
      if (m >= rows || columns == 0) continue;
      auto to = row(m0 + m) + n0;
      int n = i < head(to) ? i : columns - WIDTH + i;
      to[n] = reinterpret_cast<decltype(to)>(const_cast<char*>(cell(m, n)) + OFFSET)[n % WIDTH];
    }
  }
};

// What is left when all whole vectors of rows [m0, m1) x columns [n0, n1) (at most a block) are in their cells.
template <class S, class Epilogue>
__device__ __forceinline__ void finish_rows(typename S::Sum* sums, int m0, int m1, int n0, int n1, const Epilogue& epilogue) {
  const unsigned self = S::self();
  int rows = min_of(m1 - m0, S::BLOCK_M), columns = min_of(n1 - n0, S::BLOCK_N), single = columns % S::WIDTH;
  if (single != 0) {
#pragma unroll 1
    for (unsigned e = self; e < S::ROWS * S::WIDTH; e += S::THREADS) {
      int m = int(e / S::WIDTH), i = int(e % S::WIDTH), n = columns - single + i;
      if (m < rows && i < single) epilogue.singles(m0 + m, n0 + n, total<S, 1>(sums + m * S::SUM_PITCH + n));
    }
  }
  S::barrier();
  epilogue.rows(Cells<S>{reinterpret_cast<char*>(sums), m0, n0, rows, columns - single});
}

}  // namespace mt
