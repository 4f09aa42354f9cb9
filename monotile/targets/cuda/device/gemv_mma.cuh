// Products of weights that come through a ring on chip with a few vectors, on tensor cores. The weights may be codes, which a functor decodes.
#pragma once
#include "cuda/device/codes.cuh"
#include "cuda/device/ptx/sm_80.cuh"
#include "cuda/device/ring.cuh"

namespace mt {

// vectors:      up to 16, side by side on chip, `vector_pitch` elements apart.
// elements:     that a lane decodes at once, of `run` bytes. Four lanes have a block: so many columns of a row.
// warps, parts: a worker's warps; those that share tiles of 8 rows, and take its blocks in turns. A warp has `tiles` of them at a time.
// slots, pieces, blocks: slots of a task's rows; pieces in which each comes through the ring; blocks of a piece.
// pitch:        bytes from row to row of a slot.
struct GemvConfig {
  int vectors, vector_pitch, elements, run, warps, parts, tiles, slots, pieces, blocks, pitch;
};

// Where chunk `number` of a vector lies on chip, CHUNK elements each: those that the lanes of a block take at once are neighbours.
template <int ELEMENTS, int CHUNK>
__device__ __forceinline__ int vector_place(int number) {
  constexpr int OWN = ELEMENTS / CHUNK;  // chunks of a lane
  const int block = number / (4 * OWN), lane = number / OWN % 4, own = number % OWN;
  return (block * 4 * OWN + own * 4 + lane) * CHUNK;
}

// The same for elements that are wanted in another order: of ORDER neighbours, element i is number order[i].
template <int ELEMENTS, int ORDER, class T, int CHUNK>
__device__ __forceinline__ void store_ordered(T* vector, int number, const Pack<T, CHUNK>& values, const int (&order)[ORDER]) {
#pragma unroll
  for (int i = 0; i < CHUNK; ++i) {
    const int element = number * CHUNK + i, place = element / ORDER * ORDER + order[element % ORDER];
    vector[vector_place<ELEMENTS, CHUNK>(place / CHUNK) + place % CHUNK] = values[i];
  }
}

// A pack to where words of 4 bytes are aligned, or elements that are less.
template <class T, int N>
__device__ __forceinline__ void store_words(void* to, const Pack<T, N>& x) {
  if constexpr (sizeof(T) * N % 4 == 0) {
    u32 words[sizeof(T) * N / 4];
    memcpy(words, x.value, sizeof(words));
#pragma unroll
    for (int i = 0; i < int(sizeof(T) * N / 4); ++i) static_cast<u32*>(to)[i] = words[i];
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) static_cast<T*>(to)[i] = x[i];
  }
}

// sums[row][part][vector] = the part's columns of each row of the task times those of each vector. decode(words, row, run): a lane's elements.
// The products have the vectors as rows and the weights as columns: a lane takes 4 columns of its own at a time, in whatever order both have.
template <class T, GemvConfig C, class Ring, class Decode>
__device__ __forceinline__ void gemv_mma(Ring& ring, const T* vectors, const Decode& decode, float* sums) {
  constexpr int STEPS = C.elements / 4, CHUNK = C.elements < 8 ? 4 : 8, OWN = C.elements / CHUNK;
  constexpr int M = C.vectors, SLOT_ROWS = 8 * C.tiles * (C.warps / C.parts);
  const int lane = threadIdx.x % 32, line = lane / 4, own = lane % 4;
  const int warp = threadIdx.x / 32, part = warp % C.parts, first = warp / C.parts * 8 * C.tiles;
  const T* const low = vectors + min_of(line, M - 1) * C.vector_pitch + own * CHUNK;
  const T* const high = vectors + min_of(line + 8, M - 1) * C.vector_pitch + own * CHUNK;
#pragma unroll 1
  for (int slot = 0; slot < C.slots; ++slot) {
    float total[C.tiles][4] = {};
#pragma unroll 1
    for (int piece = 0; piece < C.pieces; ++piece) {
      const u32 number = slot * C.pieces + piece;
      const char* const codes = ring.await(number) + (first + line) * C.pitch + own * C.run;
#pragma unroll 1
      for (int b = part; b < C.blocks; b += C.parts) {
        const int block = piece * C.blocks + b;
        u32 a[STEPS][4];
#pragma unroll
        for (int j = 0; j < OWN; ++j) {
          u32 words[2][CHUNK / 2] = {};
          memcpy(words[0], load<CHUNK>(low + (block * OWN + j) * 4 * CHUNK).value, 2 * CHUNK);
          if (M > 8) memcpy(words[1], load<CHUNK>(high + (block * OWN + j) * 4 * CHUNK).value, 2 * CHUNK);
#pragma unroll
          for (int s = 0; s < CHUNK / 4; ++s)
#pragma unroll
            for (int h = 0; h < 2; ++h)
              a[j * CHUNK / 4 + s][h] = words[h][2 * s], a[j * CHUNK / 4 + s][2 + h] = words[h][2 * s + 1];
        }
#pragma unroll
        for (int t = 0; t < C.tiles; ++t) {
          const auto read = load<C.run / 4>(reinterpret_cast<const u32*>(codes + t * 8 * C.pitch + b * 4 * C.run));
          const auto weights = decode(read, slot * SLOT_ROWS + first + t * 8 + line, block * 4 + own);
          u32 b[STEPS][2];
          memcpy(b, weights.value, sizeof(b));
#pragma unroll
          for (int s = 0; s < STEPS; ++s) ptx::mma_16816<T>(total[t], a[s], b[s]);
        }
      }
      ring.template release<1>(number);
    }
#pragma unroll
    for (int t = 0; t < C.tiles; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = slot * SLOT_ROWS + first + t * 8 + own * 2 + i % 2, m = line + i / 2 * 8;
        if (m < M) sums[(row * C.parts + part) * M + m] = total[t][i];
      }
  }
  ring.leave(C.slots * C.pieces);
}

}  // namespace mt
