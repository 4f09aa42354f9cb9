// Copies in another order of axes.
#pragma once
#include "cuda/device/barrier.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/types.cuh"

namespace mt {

// Runs of WIDTH x COUNT elements that lie side by side, one for each vector of what is written: on chip in pieces of WIDTH, as in memory, so that
// threads that lie side by side ask for pieces that do. From there a thread takes its own run; an odd COUNT keeps threads in banks of their own.
template <class T, int WIDTH, int COUNT>
struct Runs {
  static constexpr int PIECE = WIDTH * int(sizeof(T));

  // Asks for piece `q` of all, of the run that begins at `run`.
  static __device__ __forceinline__ void fetch(char* shared, int q, const T* run) {
    ptx::copy_async<PIECE>(ptx::shared_address(shared + q * PIECE), run + q % COUNT * WIDTH);
  }

  // Waits for all pieces of all threads.
  static __device__ __forceinline__ void settle() {
    ptx::copy_async_commit();
    ptx::copy_async_wait<0>();
    block_barrier();
  }

  static __device__ __forceinline__ void take(Pack<T, WIDTH> (&run)[COUNT], const char* shared, int e) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) run[i] = load<WIDTH>(reinterpret_cast<const T*>(shared + (e * COUNT + i) * PIECE));
  }
};

// A tile of a transposition by way of shared memory: to[c * to_step + r] = from[r * from_step + c] for r < rows, c < columns.
// EXTENT: rows and columns of a whole tile. VECTOR: neighbours that a thread moves at once, which divide `rows` and `columns`. A column of the tile is a line on
// chip, of 16-byte cells that are permuted by XOR with the number of the vector that the column is in: threads that write one row, and those that
// read one column, meet in different banks. Of 16-bit elements those of two rows are written at once. TO_TF32: rounds float32.
template <class T, int EXTENT, int VECTOR, int THREADS, bool TO_TF32 = false>
struct TransposeTile {
  static constexpr int CELL = 16 / int(sizeof(T)), CELLS = EXTENT / CELL;  // elements, and of a line
  static constexpr int BYTES = EXTENT * EXTENT * int(sizeof(T));
  static constexpr int PIECES = EXTENT / VECTOR, LINES = sizeof(T) == 2 ? 2 : 1;  // rows that a thread reads side by side
  static constexpr int READS = EXTENT / LINES * PIECES, WRITES = EXTENT * PIECES;
  static_assert(EXTENT % CELL == 0 && is_power_of_two(CELLS) && CELL % VECTOR == 0, "A row of a tile is whole cells, and these are whole vectors.");
  static_assert(LINES == 1 || VECTOR % 2 == 0, "Two rows of 16 bits are written at once.");

  static __device__ __forceinline__ int at(int column, int row) {
    return column * EXTENT + ((row / CELL ^ column / VECTOR) & (CELLS - 1)) * CELL + row % CELL;
  }

  static __device__ __forceinline__ void run(char* shared, const T* from, i64 from_step, T* to, i64 to_step, int rows, int columns) {
    T* const tile = reinterpret_cast<T*>(shared);
    constexpr int ROUNDS = ceil_div(READS, THREADS);
    Pack<T, VECTOR> taken[ROUNDS][LINES];
    auto each = [&](const auto& f) {
#pragma unroll
      for (int i = 0; i < ROUNDS; ++i) {
        const unsigned e = i * THREADS + threadIdx.x;
        const int row = int(e / PIECES) * LINES, column = int(e % PIECES) * VECTOR;
        if (row < rows && column < columns) f(i, row, column);
      }
    };
    each([&](int i, int row, int column) {
#pragma unroll
      for (int l = 0; l < LINES; ++l) taken[i][l] = load<VECTOR>(from + (row + l) * from_step + column);
    });
    block_barrier();  // the tile before is read
    each([&](int i, int row, int column) {
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) {
        Pack<T, LINES> of_column;
#pragma unroll
        for (int l = 0; l < LINES; ++l)
          if constexpr (TO_TF32)
            of_column[l] = mt_to_tf32_f32(taken[i][l][v]);
          else
            of_column[l] = taken[i][l][v];
        store(tile + at(column + v, row), of_column);
      }
    });
    block_barrier();
#pragma unroll
    for (int i = 0; i < ceil_div(WRITES, THREADS); ++i) {
      const unsigned e = i * THREADS + threadIdx.x;
      const int column = int(e / PIECES), row = int(e % PIECES) * VECTOR;
      if (row < rows && column < columns) store(to + column * to_step + row, load<VECTOR>(tile + at(column, row)));
    }
  }
};

}  // namespace mt
