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
  static constexpr int PIECES = TILE.k / 64;  // of a chunk, of 64 values of k: a register has their places
  static_assert(is_float16<T> && LeftPanel::K_MAJOR, "Sparse wgmma multiplies float16 or bfloat16 that lie along k.");
  static_assert((LINE == 64 || LINE == 128) && Panel::XOR && LeftPanel::XOR, "A line of a sparse panel for wgmma has 64 or 128 bytes.");
  static_assert(LeftPanel::BLOCKS == PIECES, "A block of the left panel has 64 values of k.");

  struct Accumulator : Transposed::Accumulator {
    u32 places[PIECES][TM];  // of a chunk, until its products are done
  };
  static __device__ __forceinline__ void clear(Accumulator& acc) {
    Transposed::clear(acc);
#pragma unroll
    for (int p = 0; p < PIECES; ++p)
#pragma unroll
      for (int i = 0; i < TM; ++i) acc.places[p][i] = 0;
  }

  // The places of a warp's columns, chunk after chunk. A piece has 8 bytes of a column; the four lanes that share two columns hold eight pieces
  // of these, two each, and ask for as many more ahead: larger parts of memory than the values come in.
  template <class Operand>
  struct Places {
    static constexpr int PERIOD = 8 / PIECES, BYTES = 8;  // chunks, and of a piece
    using Words = u32[TM][2][4];
    const Operand& operand;
    int column, last, lane, slice;
    int t = 0;                                    // of the slice's chunks
    Words words, ahead;
    u32 next[PIECES][TM], lower[PIECES][TM];      // the words with those of the next chunk, of a column and of that eight columns on

    // first: the first column of the warp. end: of the operand's columns.
    __device__ __forceinline__ Places(const Operand& operand, int first, int end, int slice, int lane)
        : operand(operand), column(first + lane / 4), last(end - 1), lane(lane), slice(slice) {
      ask(words, 0);
      ask(ahead, PERIOD);
#pragma unroll
      for (int p = 0; p < PIECES; ++p)
#pragma unroll
        for (int i = 0; i < TM; ++i) next[p][i] = lower[p][i] = 0;
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
#pragma unroll
      for (int p = 0; p < PIECES; ++p) {
        const int piece = t % PERIOD * PIECES + p, from = (lane & ~3) + piece / 2;
        const bool second = PIECES == 2 ? p == 1 : piece % 2 != 0, high = lane % 4 >= 2;
        auto word = [&](const u32(&w)[4]) {
          const u32 a = __shfl_sync(0xffffffff, second ? w[2] : w[0], from), b = __shfl_sync(0xffffffff, second ? w[3] : w[1], from);
          return high ? b : a;
        };
#pragma unroll
        for (int i = 0; i < TM; ++i) next[p][i] = word(words[i][0]), lower[p][i] = word(words[i][1]);
      }
      ++t;
    }
    // Those of the next chunk, once no product reads those of the one before.
    __device__ __forceinline__ void put(Accumulator& acc) {
#pragma unroll
      for (int p = 0; p < PIECES; ++p) {
        ptx::register_fence(next[p]);  // nothing is made of them before
        ptx::register_fence(lower[p]);
#pragma unroll
        for (int i = 0; i < TM; ++i) acc.places[p][i] = ptx::bytes_of(next[p][i], lower[p][i], lane % 2 ? 0x7632 : 0x5410);
      }
    }

   private:
    __device__ __forceinline__ void ask(Words& to, int from) {
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const int at = min_of(column + i * COLUMN_STRIDE + row * 8, last);
          auto chunk = [&](int piece) { return min_of((from + piece / PIECES) * SLICES + slice, CHUNKS - 1) * PIECES * BYTES; };
          u32(&w)[4] = to[i][row];
          if constexpr (PIECES == 2) {
            const uint4 x = ptx::load_constant_16(operand.address(at, chunk(lane % 4 * 2)));
            w[0] = x.x, w[1] = x.y, w[2] = x.z, w[3] = x.w;
          } else {
            const uint2 x = ptx::load_constant_8(operand.address(at, chunk(lane % 4 * 2)));
            const uint2 y = ptx::load_constant_8(operand.address(at, chunk(lane % 4 * 2 + 1)));
            w[0] = x.x, w[1] = x.y, w[2] = y.x, w[3] = y.y;
          }
        }
    }
  };

  // Begins the products of a chunk, which `wait` waits for. m0, n0: the corner of this warp inside the block.
  static __device__ __forceinline__ void step(Accumulator& acc, const char* left, const char* right, int m0, int n0, int) {
    const u32 a = ptx::panel_address(ptx::shared_address(right) + n0 / 64 * 64 * LINE);
    const u32 b = ptx::panel_address(ptx::shared_address(left) + m0 * 128);
    auto columns = [&](int i, int bytes) {
      const int distance = i * COLUMN_STRIDE * LINE + bytes;
      return LINE == 64 ? ptx::narrow_panel_descriptor(a, distance) : ptx::panel_descriptor(a, distance);
    };
#pragma unroll
    for (int p = 0; p < PIECES; ++p) ptx::register_fence(acc.places[p]);
    ptx::wgmma_fence();
#pragma unroll
    for (int p = 0; p < PIECES; ++p)
#pragma unroll
      for (int i = 0; i < TM; ++i) {
        const int rows = p * LeftPanel::BLOCK_BYTES;
        ptx::wgmma_sparse<0>(T{}, acc.c[i], columns(i, p * 64), ptx::panel_descriptor(b, rows), acc.places[p][i]);
        ptx::wgmma_sparse<1>(T{}, acc.c[i], columns(i, p * 64 + 32), ptx::panel_descriptor(b, rows + 64), acc.places[p][i]);
      }
    ptx::wgmma_commit();
  }
  static __device__ __forceinline__ void wait(Accumulator& acc) {
    ptx::wgmma_wait();
#pragma unroll
    for (int p = 0; p < PIECES; ++p) ptx::register_fence(acc.places[p]);
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
