// The tensor-core kernel of a warpgroup: 16-bit products, float32 sums, operands read where the ring holds them.
#pragma once
#include "cuda/device/contract_mma.cuh"
#include "cuda/device/ptx/sm_90a.cuh"

namespace mt {

// 64 x COLUMNS: what a warpgroup accumulates at once, a warp 16 rows of it, each thread what it would have of mma.m16n8k16's sums.
// ROWS: of a warp, in all; its next 16 are APART rows further. RIGHT_K: whether the right panel's lines lie along k; else along its
// columns, 64 in each of its blocks.
template <class T, int ROWS, int APART, int COLUMNS, int DEPTH, class LeftPanel, class RightPanel, bool RIGHT_K>
struct Wgmma : Mma<T, ROWS, COLUMNS, DEPTH, LeftPanel, true, RightPanel, RIGHT_K> {
  using Base = Mma<T, ROWS, COLUMNS, DEPTH, LeftPanel, true, RightPanel, RIGHT_K>;
  static_assert(DEPTH * int(sizeof(T)) == 128 && LeftPanel::XOR && RightPanel::XOR, "a line of a panel is 128 bytes");
  static_assert(RIGHT_K || (RightPanel::CELLS == 8 && COLUMNS % 64 == 0), "a line of a panel is 128 bytes");

  // Begins the products of a chunk, which `finish` waits for. m0, n0: the corner of this warp inside the block.
  static __device__ __forceinline__ void step(typename Base::Accumulator& acc, const char* left, const char* right,
                                              int m0, int n0, int) {
    u32 a = ptx::panel_address(ptx::shared_address(left) + m0 / 64 * 64 * 128);
    constexpr int BLOCK = RIGHT_K ? 16 : RightPanel::BLOCK_BYTES;  // 16: not looked at
    u32 b = ptx::panel_address(ptx::shared_address(right) + (RIGHT_K ? n0 * 128 : n0 / 64 * RightPanel::BLOCK_BYTES), BLOCK);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16)
#pragma unroll
      for (int i = 0; i < Base::TM; ++i)
        ptx::wgmma<T, COLUMNS / 8, RIGHT_K>(acc.c[i], ptx::panel_descriptor(a, i * APART * 128 + k * 2),
                                            ptx::panel_descriptor(b, k * (RIGHT_K ? 2 : 128)));
    ptx::wgmma_commit();
  }
  // Waits for all but the newest `PENDING` chunks' products.
  template <int PENDING = 0>
  static __device__ __forceinline__ void finish() {
    ptx::wgmma_wait<PENDING>();
  }
  static __device__ __forceinline__ int row(int i, int lane) {
    constexpr int HALVES = Base::FRAGMENTS / Base::TM;
    return i / HALVES * APART + Base::row(i % HALVES, lane);
  }
};

}  // namespace mt
