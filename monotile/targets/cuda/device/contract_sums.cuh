// The epilogue of a block's sums in shared memory, where a row has a line of S::SUM_PITCH sums in each slice's part.
//
// Unaligned stores: results whose rows begin at any alignment, as rows of odd length do, have no vectors at fixed columns. The
// epilogue still takes whole vectors. It leaves each finished one in shared memory, in place of its own sums of the first slice
// (its cell), which no other thread reads. Then the block copies row after row, in vectors that begin where the row's address
// allows.
#pragma once
#include "cuda/device/barrier.cuh"
#include "cuda/device/copy.cuh"

namespace mt {

// The vector of the block that a thread takes in one step of the epilogue, if it is `valid`.
struct Position {
  int m, n;
  bool valid;
};

// VECTOR neighbouring sums of all slices. at: their place in the first slice's part.
template <class S, int VECTOR>
__device__ __forceinline__ Pack<typename S::Sum, VECTOR> total(const typename S::Sum* at) {
  Pack<typename S::Sum, VECTOR> out = load<VECTOR>(at);
#pragma unroll
  for (int s = 1; s < S::SLICES; ++s) {
    Pack<typename S::Sum, VECTOR> part = load<VECTOR>(at + s * (S::BLOCK_M * S::SUM_PITCH));
#pragma unroll
    for (int w = 0; w < VECTOR; ++w) out[w] += part[w];
  }
  return out;
}

// One of each of several products.
template <class T, int COUNT>
struct Together {
  T part[COUNT];
};
// What an epilogue takes at once: S::VECTOR neighbours, of several products together. at: as above.
template <class S>
__device__ __forceinline__ auto totals(const typename S::Sum* at) {
  if constexpr (S::PRODUCTS == 1) {
    return total<S, S::VECTOR>(at);
  } else {
    Together<Pack<typename S::Sum, S::VECTOR>, S::PRODUCTS> out;
#pragma unroll
    for (int i = 0; i < S::PRODUCTS; ++i) out.part[i] = total<S, S::VECTOR>(at + i * S::EACH);
    return out;
  }
}

// An epilogue with unaligned stores. vectors(m, n, sums, fetched, valid, cell) stores results in their cell. singles(m, n, sums)
// stores in place the results of the last columns, too few for a vector. rows(cells) calls cells.copy for each result that has
// unaligned rows.
template <class Vectors, class Singles, class Rows>
struct UnalignedStores {
  const Vectors& vectors;
  const Singles& singles;
  const Rows& rows;
};
template <class Vectors, class Singles, class Rows>
__device__ __forceinline__ UnalignedStores<Vectors, Singles, Rows> unaligned_stores(const Vectors& vectors, const Singles& singles,
                                                                                    const Rows& rows) {
  return {vectors, singles, rows};
}
template <class Epilogue>
inline constexpr bool IS_UNALIGNED = false;
template <class Vectors, class Singles, class Rows>
inline constexpr bool IS_UNALIGNED<UnalignedStores<Vectors, Singles, Rows>> = true;

// An epilogue of whole rows. ahead() asks for what it reads besides the sums, while the operands are copied. rows(sums) finishes all
// rows of the block, whose first sum it is given.
template <class Ahead, class Rows>
struct RowEpilogue {
  const Ahead& ahead;
  const Rows& rows;
};
template <class Ahead, class Rows>
__device__ __forceinline__ RowEpilogue<Ahead, Rows> row_epilogue(const Ahead& ahead, const Rows& rows) {
  return {ahead, rows};
}
template <class Epilogue>
inline constexpr bool IS_BY_ROW = false;
template <class Ahead, class Rows>
inline constexpr bool IS_BY_ROW<RowEpilogue<Ahead, Rows>> = true;

// The finished vectors of a block in their cells: `rows` rows from row m0 on, `columns` columns (whole vectors) from column n0 on.
template <class S>
struct Cells {
  static constexpr int VECTOR = S::VECTOR, CELL = VECTOR * int(sizeof(typename S::Sum)), LINE = S::SUM_PITCH / VECTOR * CELL;
  static_assert(S::SUM_PITCH % VECTOR == 0, "A line of sums must be a whole number of cells.");
  char* sums;
  int m0, n0, rows, columns;

  // Copies the results that are `OFFSET` bytes into their cells. row(m): the address of column 0 of row m. All vectors of a row but
  // one are stored as aligned vectors; the elements before and after these, as many as a vector has, one by one.
  template <int OFFSET, class Row>
  __device__ __forceinline__ void copy(const Row& row) const {
    copy_vectors<OFFSET>(row);
    copy_ends<OFFSET>(row);
  }

 private:
  // Elements before the first aligned vector.
  template <class T>
  static __device__ __forceinline__ int head(const T* to) {
    return -u32(reinterpret_cast<u64>(to)) / u32(sizeof(T)) % VECTOR;
  }
  __device__ __forceinline__ const char* cell(int m, int n) const { return sums + m * LINE + n / VECTOR * CELL; }

  template <int OFFSET, class Row>
  __device__ __forceinline__ void copy_vectors(const Row& row) const {
    constexpr int ROW_VECTORS = S::ROW_VECTORS, STEPS = ceil_div(S::ROWS * ROW_VECTORS, S::THREADS), UNROLL = 4;
    constexpr int SIZE = sizeof(*row(0)), WORDS = VECTOR * SIZE / 4;
    const unsigned own = S::team_thread();
    auto position = [&](int step) {
      unsigned e = step * S::THREADS + own;
      int m = int(e / ROW_VECTORS), n = int(e % ROW_VECTORS) * VECTOR;
      return Position{m, n, m < rows && n + VECTOR < columns};
    };
#pragma unroll 1
    for (int step = 0; step < STEPS; step += UNROLL) {
      Pack<u32, WORDS> low[UNROLL], high[UNROLL];
#pragma unroll
      for (int i = 0; i < UNROLL; ++i) {
        if (Position p = position(step + i); p.valid) {
          auto from = reinterpret_cast<const u32*>(cell(p.m, p.n) + OFFSET);
          low[i] = load<WORDS>(from);
          high[i] = load<WORDS>(from + CELL / 4);
        }
      }
#pragma unroll
      for (int i = 0; i < UNROLL; ++i) {
        if (Position p = position(step + i); p.valid) {
          auto to = row(m0 + p.m) + n0;
          int skip = head(to);
          store(reinterpret_cast<u32*>(to + p.n + skip), between(low[i], high[i], skip * SIZE));
        }
      }
    }
  }
  template <int OFFSET, class Row>
  __device__ __forceinline__ void copy_ends(const Row& row) const {
    const unsigned own = S::team_thread();
#pragma unroll 1
    for (unsigned e = own; e < S::ROWS * VECTOR; e += S::THREADS) {
      int m = int(e / VECTOR), i = int(e % VECTOR);
      if (m >= rows || columns == 0) continue;
      auto to = row(m0 + m) + n0;
      int n = i < head(to) ? i : columns - VECTOR + i;
      to[n] = reinterpret_cast<decltype(to)>(const_cast<char*>(cell(m, n)) + OFFSET)[n % VECTOR];
    }
  }
};

// Stores rows [m0, m1) x columns [n0, n1) (at most a block), whose whole vectors are all in their cells.
template <class S, class Epilogue>
__device__ __forceinline__ void store_unaligned(typename S::Sum* sums, int m0, int m1, int n0, int n1, const Epilogue& epilogue) {
  const unsigned own = S::team_thread();
  int rows = min_of(m1 - m0, S::BLOCK_M), columns = min_of(n1 - n0, S::BLOCK_N), single = columns % S::VECTOR;
  if (single != 0) {
#pragma unroll 1
    for (unsigned e = own; e < S::ROWS * S::VECTOR; e += S::THREADS) {
      int m = int(e / S::VECTOR), i = int(e % S::VECTOR), n = columns - single + i;
      if (m < rows && i < single) epilogue.singles(m0 + m, n0 + n, total<S, 1>(sums + m * S::SUM_PITCH + n));
    }
  }
  S::barrier();
  epilogue.rows(Cells<S>{reinterpret_cast<char*>(sums), m0, n0, rows, columns - single});
}

}  // namespace mt
