// The tensor-core kernel of a warp: float16 or bfloat16 products, float32 sums, mma.m16n8k16.
#pragma once
#include "cuda/panel.cuh"

namespace mt {

// WARP_M x WARP_N: what one warp accumulates. Its operands lie in LeftPanel and RightPanel.
template <class T, int WARP_M, int WARP_N, int DEPTH, class LeftPanel, bool LEFT_K, class RightPanel,
          bool RIGHT_K>
struct Mma {
  static_assert(WARP_M % 16 == 0 && WARP_N % 8 == 0, "a warp's tile is a multiple of 16 x 8");
  static_assert(DEPTH % 16 == 0, "a chunk is a multiple of 16 deep");
  static constexpr int TM = WARP_M / 16, TN = WARP_N / 8;
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
    u32 a0 = ptx::shared_address(left), b0 = ptx::shared_address(right);
    int low = lane & 7, bit3 = (lane >> 3) & 1, bit4 = lane >> 4;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
      u32 a[TM][4], b[TN][2];
#pragma unroll
      for (int i = 0; i < TM; ++i) {
        int m = m0 + i * 16;
        int at = LEFT_K ? LeftPanel::offset(m + bit3 * 8 + low, k / 8 + bit4)
                        : LeftPanel::offset(k + bit4 * 8 + low, m / 8 + bit3);
        ptx::load_matrix_x4<!LEFT_K>(a[i], a0 + at);
      }
#pragma unroll
      for (int j = 0; j + 1 < TN; j += 2) {
        int n = n0 + j * 8;
        int at = RIGHT_K ? RightPanel::offset(n + bit4 * 8 + low, k / 8 + bit3)
                         : RightPanel::offset(k + bit3 * 8 + low, n / 8 + bit4);
        u32 pair[4];
        ptx::load_matrix_x4<!RIGHT_K>(pair, b0 + at);
        b[j][0] = pair[0], b[j][1] = pair[1], b[j + 1][0] = pair[2], b[j + 1][1] = pair[3];
      }
      if constexpr (TN % 2 == 1) {
        int n = n0 + (TN - 1) * 8;
        int at = RIGHT_K ? RightPanel::offset(n + low, k / 8 + bit3)
                         : RightPanel::offset(k + bit3 * 8 + low, n / 8);
        ptx::load_matrix_x2<!RIGHT_K>(b[TN - 1], b0 + at);
      }
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) ptx::mma_16816<T>(acc.c[i][j], a[i], b[j]);
    }
  }

  // Calls f(m, n, pack of WIDTH sums along n), m and n inside the warp's tile.
  static constexpr int WIDTH = 2;
  template <class F>
  static __device__ __forceinline__ void each(const Accumulator& acc, int lane, F f) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < TN; ++j)
          f(i * 16 + half * 8 + lane / 4, j * 8 + (lane & 3) * 2,
            Pack<float, 2>{{acc.c[i][j][half * 2], acc.c[i][j][half * 2 + 1]}});
  }
};

}  // namespace mt
