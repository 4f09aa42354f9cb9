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
// EXTENT: rows and columns of a whole tile. VECTOR: neighbours that a thread moves at once, which divide `rows` and `columns`. The pitch is odd in
// words of four bytes: neither the rows that are written nor the columns that are read meet in one bank often. TO_TF32: rounds float32.
template <class T, int EXTENT, int VECTOR, int THREADS, bool TO_TF32 = false>
struct TransposeTile {
  static constexpr int PITCH = EXTENT + max_of(1, 4 / int(sizeof(T)));
  static constexpr int BYTES = EXTENT * PITCH * int(sizeof(T));
  static constexpr int PIECES = EXTENT / VECTOR, TOTAL = EXTENT * PIECES, ROUNDS = ceil_div(TOTAL, THREADS);
  static_assert(EXTENT % VECTOR == 0, "A row of a tile is whole vectors.");

  static __device__ __forceinline__ void run(char* shared, const T* from, i64 from_step, T* to, i64 to_step, int rows, int columns) {
    T* const tile = reinterpret_cast<T*>(shared);
    Pack<T, VECTOR> taken[ROUNDS];
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
      int e = i * THREADS + int(threadIdx.x), row = e / PIECES, column = e % PIECES * VECTOR;
      if (row < rows && column < columns) taken[i] = load<VECTOR>(from + row * from_step + column);
    }
    block_barrier();  // the tile before is read
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
      int e = i * THREADS + int(threadIdx.x), row = e / PIECES, column = e % PIECES * VECTOR;
      if (row < rows && column < columns) {
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) {
          if constexpr (TO_TF32)
            tile[row * PITCH + column + v] = mt_to_tf32_f32(taken[i][v]);
          else
            tile[row * PITCH + column + v] = taken[i][v];
        }
      }
    }
    block_barrier();
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
      int e = i * THREADS + int(threadIdx.x), column = e / PIECES, row = e % PIECES * VECTOR;
      if (row < rows && column < columns) {
        Pack<T, VECTOR> line;
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) line[v] = tile[(row + v) * PITCH + column];
        store(to + column * to_step + row, line);
      }
    }
  }
};

}  // namespace mt
