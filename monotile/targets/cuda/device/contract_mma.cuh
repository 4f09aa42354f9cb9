// The tensor-core kernel of a warp: float16 or bfloat16 products, float32 sums, mma.m16n8k16.
#pragma once
#include "cuda/device/panel.cuh"

namespace mt {

// Addresses for ldmatrix: the 16 bytes at (row, k) of a panel, and those at constant distances from there. The permutation of a
// panel's cells depends on the line modulo 8 only. So where k runs along the line, a distance is an XOR of address bits; this needs
// panels that begin at multiples of 128 bytes.
template <class Panel>
struct Rows {
  static constexpr bool K_MAJOR = Panel::K_MAJOR;
  u32 base, first;
  int row, k;

  __device__ __forceinline__ Rows(const char* panel, int row, int k)
      : base(ptx::shared_address(panel)),
        first(base + (K_MAJOR ? Panel::offset(row, k / 8) : 0)),
        row(row),
        k(k) {}
  // rows: a multiple of 8. more: a multiple of 16 added to a k below 16.
  __device__ __forceinline__ u32 at(int rows, int more) const {
    if constexpr (!K_MAJOR) return base + Panel::offset(k + more, (row + rows) / 8);
    int cells = more / 8;
    if constexpr (!Panel::XOR) return first + (rows * Panel::PITCH + cells) * 16;
    return (first ^ ((cells & Panel::MASK) * 16)) + (rows * Panel::PITCH + (cells & ~Panel::MASK)) * 16;
  }
};

// The m x n results that one warp accumulates, from chunks of k.
struct WarpTile {
  int m = 0, n = 0, k = 0;
};

// Computes TILE of operands in LeftPanel and RightPanel.
template <class T, WarpTile TILE, class LeftPanel, class RightPanel>
struct Mma {
  static constexpr bool LEFT_K = LeftPanel::K_MAJOR, RIGHT_K = RightPanel::K_MAJOR;
  static_assert(TILE.m % 16 == 0 && TILE.n % 8 == 0, "A warp's tile for mma.m16n8k16 is a multiple of 16 x 8.");
  static_assert(TILE.k % 16 == 0, "A chunk for mma.m16n8k16 is a multiple of 16 values of k.");
  static constexpr int TM = TILE.m / 16, TN = TILE.n / 8;
  using Sum = float;

  struct Accumulator {
    float c[TM][TN][4];
  };

  static __device__ __forceinline__ void clear(Accumulator& acc) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) acc.c[i][j][e] = 0;
  }

  // m0, n0: the warp's corner inside the block.
  static __device__ __forceinline__ void step(Accumulator& acc, const char* left, const char* right,
                                              int m0, int n0, int lane) {
    int low = lane & 7, bit3 = (lane >> 3) & 1, bit4 = lane >> 4;
    Rows<LeftPanel> a_rows(left, m0 + (LEFT_K ? bit3 * 8 + low : bit3 * 8),
                                   LEFT_K ? bit4 * 8 : bit4 * 8 + low);
    Rows<RightPanel> b_rows(right, n0 + (RIGHT_K ? bit4 * 8 + low : bit4 * 8),
                                     RIGHT_K ? bit3 * 8 : bit3 * 8 + low);
#pragma unroll
    for (int k = 0; k < TILE.k; k += 16) {
      u32 a[TM][4], b[TN][2];
#pragma unroll
      for (int i = 0; i < TM; ++i)
        ptx::load_matrix_x4<!LEFT_K>(a[i], a_rows.at(i * 16, k));
#pragma unroll
      for (int j = 0; j + 1 < TN; j += 2) {
        u32 pair[4];
        ptx::load_matrix_x4<!RIGHT_K>(pair, b_rows.at(j * 8, k));
        b[j][0] = pair[0], b[j][1] = pair[1], b[j + 1][0] = pair[2], b[j + 1][1] = pair[3];
      }
      if constexpr (TN % 2 == 1)  // lanes from 16 on give addresses that are not used
        ptx::load_matrix_x2<!RIGHT_K>(b[TN - 1], b_rows.at((TN - 1) * 8, k));
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) ptx::mma_16816<T>(acc.c[i][j], a[i], b[j]);
    }
  }

  static __device__ __forceinline__ void finish() {}

  // The sums of a lane: fragment i is WIDTH neighbours along n at (row, column) of the warp's tile.
  static constexpr int WIDTH = 2, FRAGMENTS = TM * TN * 2;
  static __device__ __forceinline__ bool keeps(int, int) { return true; }
  static __device__ __forceinline__ int row(int i, int lane) { return i / TN * 8 + lane / 4; }
  static __device__ __forceinline__ int column(int i, int lane) { return i % TN * 8 + (lane & 3) * 2; }
  static __device__ __forceinline__ Pack<float, 2> fragment(const Accumulator& acc, int i) {
    const float(&c)[4] = acc.c[i / TN / 2][i % TN];
    return i / TN % 2 ? Pack<float, 2>{{c[2], c[3]}} : Pack<float, 2>{{c[0], c[1]}};
  }
};

}  // namespace mt
