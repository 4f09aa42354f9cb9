// The tensor-core kernel of a warpgroup whose right operand has two of each four values along k (2:4).
#pragma once
#include "cuda/device/contract_mma.cuh"
#include "cuda/device/ptx/sm_90a.cuh"

namespace mt {

// The operand: two of each four values, side by side along k, and where they are, four of 2 bits in a byte.
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

// One chunk of such an operand: the values, and behind them where they are.
template <class T_, int ROWS, int DEPTH>
struct SparsePanel {
  using T = T_;
  static constexpr bool K_MAJOR = true;
  using Values = Panel<T, PanelConfig{.rows = ROWS, .k = DEPTH / 2}>;
  using Places = Panel<u8, PanelConfig{.rows = ROWS, .k = DEPTH / 8}>;
  static constexpr int BYTES = Values::BYTES + Places::BYTES;
};

// wgmma takes it as rows, so that a warpgroup accumulates the transposed block: 64 of its columns by its rows. TILE: of a warp, whose 16 columns
// of one warpgroup product are COLUMN_STRIDE columns from those of the next.
template <class T, WarpTile TILE, int COLUMN_STRIDE, class LeftPanel, class RightPanel>
struct WgmmaSparse {
  using Values = typename RightPanel::Values;
  using Places = typename RightPanel::Places;
  using Transposed = Mma<T, WarpTile{.m = TILE.n, .n = TILE.m, .k = TILE.k}, Values, LeftPanel>;
  using Sum = float;
  using Accumulator = typename Transposed::Accumulator;
  static constexpr bool PROMOTES = false;
  static constexpr int TM = Transposed::TM, TN = Transposed::TN, LINE = TILE.k * int(sizeof(T)) / 2;
  static_assert(is_float16<T> && LeftPanel::K_MAJOR, "Sparse wgmma multiplies float16 or bfloat16 that lie along k.");
  static_assert(LINE == 64 && Values::XOR && LeftPanel::XOR, "A line of a sparse panel for wgmma has 64 bytes.");
  static_assert(Values::BYTES % 1024 == 0, "A sparse panel for wgmma has whole groups of 64 columns.");

  static __device__ __forceinline__ void clear(Accumulator& acc) { Transposed::clear(acc); }

  // Begins the products of a chunk, which `finish` waits for. m0, n0: the corner of this warp inside the block.
  static __device__ __forceinline__ void step(Accumulator& acc, const char* left, const char* right, int m0, int n0, int lane) {
    const u32 a = ptx::panel_address(ptx::shared_address(right) + n0 / 64 * 64 * LINE);
    const u32 b = ptx::panel_address(ptx::shared_address(left) + m0 * 2 * LINE);
    const char* const from = right + Values::BYTES + Places::offset(n0 + lane / 4, 0) + lane % 4 * 2;
    u32 places[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      auto of_row = [&](int row) { return u32(*reinterpret_cast<const u16*>(from + Places::offset(row, 0))); };
      places[i] = of_row(i * COLUMN_STRIDE) | of_row(i * COLUMN_STRIDE + 8) << 16;
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      const int rows = i * COLUMN_STRIDE * LINE;
      ptx::wgmma_sparse<0>(T{}, acc.c[i], ptx::narrow_panel_descriptor(a, rows), ptx::panel_descriptor(b, 0), places[i]);
      ptx::wgmma_sparse<1>(T{}, acc.c[i], ptx::narrow_panel_descriptor(a, rows + LINE / 2), ptx::panel_descriptor(b, LINE), places[i]);
    }
    ptx::wgmma_commit();
  }
  // Waits for all but the newest `PENDING` chunks' products.
  template <int PENDING = 0>
  static __device__ __forceinline__ void finish(Accumulator&) {
    ptx::wgmma_wait<PENDING>();
  }

  // The sums of a lane: fragment i is one, at (row, column) of the warp's tile.
  static constexpr int FRAGMENTS = TM * TN * 4;
  static __device__ __forceinline__ bool keeps(int, int) { return true; }
  static __device__ __forceinline__ int row(int i, int lane) { return i / 4 % TN * 8 + lane % 4 * 2 + i % 2; }
  static __device__ __forceinline__ int column(int i, int lane) { return i / (4 * TN) * COLUMN_STRIDE + lane / 4 + i / 2 % 2 * 8; }
  static __device__ __forceinline__ Pack<Sum, 1> fragment(const Accumulator& acc, int i) { return {{acc.c[i / (4 * TN)][i / 4 % TN][i % 4]}}; }
};

// How threads copy such panels. ROWS: that are copied.
template <class Panel, CopyConfig CONFIG>
struct SparseCopies {
  static constexpr CopyConfig part(int vector, int k) {
    CopyConfig c = CONFIG;
    c.vector = vector, c.k = k;
    return c;
  }
  using Values = PanelCopies<typename Panel::Values, part(8, CONFIG.k / 2)>;
  using Places = PanelCopies<typename Panel::Places, part(8, CONFIG.k / 8)>;
  static constexpr int PLACES_OFFSET = Panel::Values::BYTES;
};

}  // namespace mt
