// Products of weights that come through a ring on chip with a few vectors, on tensor cores. The weights may be codes, which a functor decodes.
#pragma once
#include "cuda/device/codes.cuh"
#include "cuda/device/ptx/sm_80.cuh"
#include "cuda/device/ring.cuh"

namespace mt {

// vectors:      up to 16. ahead: whether a warp asks for those of the next block before it multiplies one. per, places: of `code_place`, where their elements
//               are not yet in the order of the codes.
// elements:     that a lane decodes at once, of `run` bytes. Four lanes have a block: so many columns of a row. In the last one, lanes may have none.
// warps, parts: a worker's warps; those that share tiles of 8 rows, and take its blocks in turns. A warp has `tiles` of them at a time.
// slots, pieces, runs: slots of a task's rows; pieces in which each comes through the ring; runs of a piece.
// pitch:        bytes from row to row of a slot.
struct GemvConfig {
  int vectors, elements, run, warps, parts, tiles, slots, pieces, runs, pitch;
  bool ahead;
  int per;
  u32 places;
};

// Where a lane's codes are: run `run` of row `row` of the task; in the slot run `own` of row `line`, of so many as its pieces have.
struct GemvRun {
  const char* slot;
  int row, run, line, own;
};

// Where chunk `number` of a vector lies on chip, CHUNK elements each: those that the lanes of a block take at once are neighbours.
template <int ELEMENTS, int CHUNK>
__device__ __forceinline__ int vector_place(int number) {
  constexpr int OWN = ELEMENTS / CHUNK;  // chunks of a lane
  const int block = number / (4 * OWN), lane = number / OWN % 4, own = number % OWN;
  return (block * 4 * OWN + own * 4 + lane) * CHUNK;
}

// Where element `number` lies if those that codes stand for come in another order: of a byte's PER codes, number i lies at place PLACES >> 4 * i & 7, and of those
// of 4 bytes two come at a time, half of them apart.
template <int PER, u32 PLACES>
__device__ __forceinline__ constexpr u32 code_place(u32 number) {
  constexpr u32 ALL = 4 * PER;
  const u32 own = number % ALL, at = own / PER * PER + (PLACES >> 4 * (own % PER) & 7);
  return number - own + (PER == 1 ? at : at < ALL / 2 ? 2 * at : 2 * at - ALL + 1);
}

// Chunk `number` of a vector to its place on chip, in that order.
template <int ELEMENTS, int PER, u32 PLACES, class T, int CHUNK>
__device__ __forceinline__ void store_ordered(T* vector, int number, const Pack<T, CHUNK>& values) {
#pragma unroll
  for (u32 i = 0; i < CHUNK; ++i) {
    const u32 place = code_place<PER, PLACES>(u32(number) * CHUNK + i);
    vector[vector_place<ELEMENTS, CHUNK>(place / CHUNK) + place % CHUNK] = values[i];
  }
}

// What a lane has of a vector, from the order of memory to that one.
template <int PER, u32 PLACES, int N>
__device__ __forceinline__ Pack<u32, N> ordered(const Pack<u32, N>& words) {
  if constexpr (PER == 1) return words;
  Pack<u32, N> out{};
#pragma unroll
  for (u32 i = 0; i < N; ++i) {
    const u32 word = ptx::opaque(words[i]);  // not taken apart, and so waited for, where it is loaded
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const u32 place = code_place<PER, PLACES>(2 * i + half);
      out[place / 2] |= (word >> 16 * half & 0xffff) << 16 * (place % 2);
    }
  }
  return out;
}

// Vectors on chip, side by side, PITCH elements apart: what lane `own` of a block has of one.
template <class T, int ELEMENTS, int PITCH>
struct ChipVectors {
  const T* first;
  __device__ __forceinline__ Pack<u32, ELEMENTS / 2> operator()(int m, int block, int own) const {
    constexpr int CHUNK = ELEMENTS < 8 ? 4 : 8, OWN = ELEMENTS / CHUNK;
    const T* const from = first + m * PITCH + own * CHUNK;
    Pack<u32, ELEMENTS / 2> words;
#pragma unroll
    for (int j = 0; j < OWN; ++j)
      memcpy(words.value + j * CHUNK / 2, load<CHUNK>(from + (block * OWN + j) * 4 * CHUNK).value, 2 * CHUNK);
    return words;
  }
};

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

// sums[row][part][vector] = the part's columns of each row of the task times those of each vector. decode(words, GemvRun): a lane's elements; vectors(m, block, own):
// those of a vector that they are multiplied with, as words.
// The products have 16 rows, two tiles of 8, and 8 vectors as columns: a lane takes 4 columns of its own of a row at a time, in whatever order the vectors lie.
// A sum takes longer than the products that a warp has time for until then: so a few are under way (CHAINS), which are added at the end.
template <class T, GemvConfig C, class Ring, class Vectors, class Decode>
__device__ __forceinline__ void gemv_mma(Ring& ring, const Vectors& vectors, const Decode& decode, float* sums) {
  constexpr int STEPS = C.elements / 4, BLOCKS = ceil_div(C.runs, 4);
  constexpr int M = C.vectors, GROUPS = ceil_div(M, 8), PAIRS = ceil_div(C.tiles, 2), SLOT_ROWS = 8 * C.tiles * (C.warps / C.parts);
  constexpr int CHAINS = min_of(STEPS, 4 / (PAIRS * GROUPS) > 1 ? 4 / (PAIRS * GROUPS) : 1);
  const int lane = threadIdx.x % 32, line = lane / 4, own = lane % 4;
  const int warp = threadIdx.x / 32, part = warp % C.parts, first = warp / C.parts * 8 * C.tiles;
  using Fragment = Pack<u32, 2 * STEPS>;
  // Whether a block has no run for this lane. Zeros for both factors then: the product of one and an infinity would be NaN.
  auto none = [&](int block) { return C.runs % 4 != 0 && block == BLOCKS - 1 && own >= C.runs % 4; };
  Fragment next[GROUPS];
  auto take = [&](Fragment* to, int block) {
#pragma unroll
    for (int h = 0; h < GROUPS; ++h) {
      to[h] = vectors(min_of(line + 8 * h, M - 1), block, own);
      if (none(block)) to[h] = {};
    }
  };
  if constexpr (C.ahead) take(next, part);
#pragma unroll 1
  for (int slot = 0; slot < C.slots; ++slot) {
    float total[PAIRS][GROUPS][CHAINS][4] = {};
#pragma unroll 1
    for (int piece = 0; piece < C.pieces; ++piece) {
      const u32 number = slot * C.pieces + piece;
      const char* const arrived = ring.await(number);
      const char* const codes = arrived + (first + line) * C.pitch;
#pragma unroll 2
      for (int b = part; b < BLOCKS; b += C.parts) {
        const int block = piece * BLOCKS + b, run = none(b) ? C.runs - 1 : 4 * b + own;
        Fragment of_vectors[GROUPS];
        if constexpr (C.ahead) {
#pragma unroll
          for (int h = 0; h < GROUPS; ++h) of_vectors[h] = ordered<C.per, C.places>(next[h]);
          take(next, b + C.parts < BLOCKS ? block + C.parts : part + (piece + 1 < C.pieces ? (piece + 1) * BLOCKS : 0));
        } else {
          take(of_vectors, block);
        }
        auto decoded = [&](int tile) {
          const auto read = load<C.run / 4>(reinterpret_cast<const u32*>(codes + tile * 8 * C.pitch + run * C.run));
          const int of_slot = first + tile * 8 + line;
          auto values = decode(read, GemvRun{arrived, slot * SLOT_ROWS + of_slot, piece * C.runs + run, of_slot, run});
          if (none(b)) values = {};
          return values;
        };
#pragma unroll
        for (int p = 0; p < PAIRS; ++p) {
          u32 rows[2][2 * STEPS] = {};
          const auto upper = decoded(2 * p);
          memcpy(rows[0], upper.value, sizeof(rows[0]));
          if (2 * p + 1 < C.tiles) {
            const auto lower = decoded(2 * p + 1);
            memcpy(rows[1], lower.value, sizeof(rows[1]));
          }
#pragma unroll
          for (int s = 0; s < STEPS; ++s) {
            const u32 a[4] = {rows[0][2 * s], rows[1][2 * s], rows[0][2 * s + 1], rows[1][2 * s + 1]};
#pragma unroll
            for (int h = 0; h < GROUPS; ++h) {
              const u32 columns[2] = {of_vectors[h][2 * s], of_vectors[h][2 * s + 1]};
              ptx::mma_16816<T>(total[p][h][s % CHAINS], a, columns);
            }
          }
        }
      }
      ring.template release<1>(number);
    }
#pragma unroll
    for (int p = 0; p < PAIRS; ++p)
#pragma unroll
      for (int h = 0; h < GROUPS; ++h)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int tile = 2 * p + i / 2, row = slot * SLOT_ROWS + first + tile * 8 + line, m = 8 * h + own * 2 + i % 2;
          float sum = total[p][h][0][i];
#pragma unroll
          for (int c = 1; c < CHAINS; ++c) sum += total[p][h][c][i];
          if (tile < C.tiles && m < M) sums[(row * C.parts + part) * M + m] = sum;
        }
  }
  ring.leave(C.slots * C.pieces);
}

}  // namespace mt
