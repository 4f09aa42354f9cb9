// The tensor-core kernel of a warpgroup whose right operand has two of each four values along k (2:4).
#pragma once
#include "cuda/device/contract_mma.cuh"
#include "cuda/device/ptx/sm_90a.cuh"

namespace mt {

// The operand: two of each four values, side by side along k, and where they are, four of 2 bits in a byte. Both are linear.
template <class Values_, class Places_>
struct Sparse {
  using Values = Values_;
  using Places = Places_;
  Values values;
  Places places;
};
template <class Values, class Places>
__device__ __forceinline__ Sparse<Values, Places> sparse(const Values& values, const Places& places) {
  return {values, places};
}

// wgmma takes it as rows, so that a warpgroup accumulates the transposed block: 64 of its columns by its rows. TILE: of a warp, whose 16 columns
// of one warpgroup product are COLUMN_STRIDE columns from those of the next. Panel: of the values. A slice has every SLICES-th of CHUNKS.
template <class T, WarpTile TILE, int COLUMN_STRIDE, class LeftPanel, class Panel, int SLICES, int CHUNKS>
struct WgmmaSparse {
  using Transposed = Mma<T, WarpTile{.m = TILE.n, .n = TILE.m, .k = TILE.k}, Panel, LeftPanel>;
  using Sum = float;
  static constexpr bool PROMOTES = false;
  static constexpr int TM = Transposed::TM, TN = Transposed::TN, LINE = TILE.k * int(sizeof(T)) / 2;
  static_assert(is_float16<T> && LeftPanel::K_MAJOR, "Sparse wgmma multiplies float16 or bfloat16 that lie along k.");
  static_assert(LINE == 64 && Panel::XOR && LeftPanel::XOR, "A line of a sparse panel for wgmma has 64 bytes.");

  struct Accumulator : Transposed::Accumulator {
    u32 places[TM];  // of a chunk, until its products are done
  };
  static __device__ __forceinline__ void clear(Accumulator& acc) {
    Transposed::clear(acc);
#pragma unroll
    for (int i = 0; i < TM; ++i) acc.places[i] = 0;
  }

  // The places of a warp's columns, chunk after chunk. A chunk has 8 bytes of a column; the four lanes that share two columns hold PERIOD chunks
  // of these, two each, and ask for as many more ahead: fewer and longer pieces than the values come in.
  template <class Operand>
  struct Places {
    static constexpr int PERIOD = 8;
    static constexpr int BYTES = TILE.k / 8;
    static_assert(BYTES == 8, "A chunk has 64 values of k.");
    using Words = u32[TM][2][4];
    const Operand& operand;
    int column, last, lane, slice;
    int t = 0;                      // of the slice's chunks
    Words words, ahead;
    u32 next[TM], next_lower[TM];   // the words with those of the next chunk, of a column and of that eight columns on

    // first: the first column of the warp. end: of the operand's columns.
    __device__ __forceinline__ Places(const Operand& operand, int first, int end, int slice, int lane)
        : operand(operand), column(first + lane / 4), last(end - 1), lane(lane), slice(slice) {
      ask(words, 0);
      ask(ahead, PERIOD);
#pragma unroll
      for (int i = 0; i < TM; ++i) next[i] = next_lower[i] = 0;
    }
    __device__ __forceinline__ void advance() {
      if (t % PERIOD == 0 && t > 0) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
          for (int row = 0; row < 2; ++row)
#pragma unroll
            for (int w = 0; w < 4; ++w) words[i][row][w] = ahead[i][row][w];
        ask(ahead, t + PERIOD);
      }
      const int from = (lane & ~3) + t % PERIOD / 2;
      const bool second = t % 2 != 0, high = lane % 4 >= 2;
      auto word = [&](const u32(&w)[4]) {
        const u32 a = __shfl_sync(0xffffffff, second ? w[2] : w[0], from), b = __shfl_sync(0xffffffff, second ? w[3] : w[1], from);
        return high ? b : a;
      };
#pragma unroll
      for (int i = 0; i < TM; ++i) next[i] = word(words[i][0]), next_lower[i] = word(words[i][1]);
      ++t;
    }
    // Those of the next chunk, once no product reads those of the one before.
    __device__ __forceinline__ void put(Accumulator& acc) {
      ptx::register_fence(next);  // nothing is made of them before
      ptx::register_fence(next_lower);
#pragma unroll
      for (int i = 0; i < TM; ++i) acc.places[i] = ptx::bytes_of(next[i], next_lower[i], lane % 2 ? 0x7632 : 0x5410);
    }

   private:
    __device__ __forceinline__ void ask(Words& to, int from) {
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int row = 0; row < 2; ++row)
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const int chunk = min_of((from + lane % 4 * 2 + n) * SLICES + slice, CHUNKS - 1);
            const int at = min_of(column + i * COLUMN_STRIDE + row * 8, last);
            const uint2 two = ptx::load_constant_8(operand.address(at, chunk * BYTES));
            to[i][row][2 * n] = two.x, to[i][row][2 * n + 1] = two.y;
          }
    }
  };

  // Begins the products of a chunk, which `wait` waits for. m0, n0: the corner of this warp inside the block.
  static __device__ __forceinline__ void step(Accumulator& acc, const char* left, const char* right, int m0, int n0, int) {
    const u32 a = ptx::panel_address(ptx::shared_address(right) + n0 / 64 * 64 * LINE);
    const u32 b = ptx::panel_address(ptx::shared_address(left) + m0 * 2 * LINE);
    ptx::register_fence(acc.places);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      const int rows = i * COLUMN_STRIDE * LINE;
      ptx::wgmma_sparse<0>(T{}, acc.c[i], ptx::narrow_panel_descriptor(a, rows), ptx::panel_descriptor(b, 0), acc.places[i]);
      ptx::wgmma_sparse<1>(T{}, acc.c[i], ptx::narrow_panel_descriptor(a, rows + LINE / 2), ptx::panel_descriptor(b, LINE), acc.places[i]);
    }
    ptx::wgmma_commit();
  }
  static __device__ __forceinline__ void wait(Accumulator& acc) {
    ptx::wgmma_wait();
    ptx::register_fence(acc.places);
  }
  static __device__ __forceinline__ void finish(Accumulator& acc) { wait(acc); }

  // The sums of a lane: fragment i is one, at (row, column) of the warp's tile.
  static constexpr int FRAGMENTS = TM * TN * 4;
  static __device__ __forceinline__ bool keeps(int, int) { return true; }
  static __device__ __forceinline__ int row(int i, int lane) { return i / 4 % TN * 8 + lane % 4 * 2 + i % 2; }
  static __device__ __forceinline__ int column(int i, int lane) { return i / (4 * TN) * COLUMN_STRIDE + lane / 4 + i / 2 % 2 * 8; }
  static __device__ __forceinline__ Pack<Sum, 1> fragment(const Accumulator& acc, int i) { return {{acc.c[i / (4 * TN)][i / 4 % TN][i % 4]}}; }
};

// The places of the columns of a warp from `first` on, if the right operand is sparse. S: a `Product`.
template <class S, class Right>
__device__ __forceinline__ auto places_of(const Right& right, int first, int end, int slice, int lane) {
  if constexpr (S::Right::SPARSE)
    return typename S::Core::template Places<typename Right::Places>(right.places, first, end, slice, lane);
  else
    return nullptr;
}

}  // namespace mt
