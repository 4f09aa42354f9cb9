// The tensor-core kernel of short runs of columns, each of which is multiplied with a part of the left side of its own: a grouped
// convolution of a few channels a group. mma.m16n8k16; no sum ever meets another run's values, not even times zero.
#pragma once
#include "cuda/device/contract_mma.cuh"

namespace mt {

// A warp's part: WARP_M rows x whole runs of RUN columns. DEPTH: of the right panel's chunk, whose k is places of PART neighbours
// each. Of each place the left panel's chunk has LINE neighbours: the parts of all the block's runs.
//
// A lane's four values of k are neighbours in memory, 8 bytes of either panel: the order of k within a product is free, as long as
// both sides have the same. Rows are dealt to lanes such that the eight-byte loads of half a warp, of several places, fall into
// all banks.
template <class T, int WARP_M, int WARP_N, int DEPTH, class LeftPanel, class RightPanel, int RUN, int PART, int LINE>
struct Runs : Mma<T, WARP_M, WARP_N / RUN * ceil_div(RUN, 8) * 8, DEPTH, LeftPanel, true, RightPanel, true> {
  static constexpr int RUNS = WARP_N / RUN, TN = ceil_div(RUN, 8);  // of the warp; fragments of one
  using Base = Mma<T, WARP_M, RUNS * TN * 8, DEPTH, LeftPanel, true, RightPanel, true>;
  using Base::TM;
  static_assert(WARP_N % RUN == 0, "a warp has whole runs");
  static_assert(DEPTH % PART == 0 && PART % 4 == 0, "four neighbours of k are of one place");
  static_assert(RUN % 4 == 0, "a thread's pairs of columns are of one run");

  // m0, n0: the warp's corner inside the block.
  static __device__ __forceinline__ void step(typename Base::Accumulator& acc, const char* left, const char* right,
                                              int m0, int n0, int lane) {
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
      int at = k + lane % 4 * 4;
      int from = at / PART * LINE + n0 / RUN * PART + at % PART;
#pragma unroll
      for (int r = 0; r < RUNS; ++r, from += PART) {
        u32 b[TN][2];
#pragma unroll
        for (int j = 0; j < TN; ++j) {
          int column = j * 8 + (RUN - j * 8 < 8 ? lane / 4 % 4 : lane / 4);  // beyond the run: any, their sums are not kept
          pair(b[j][0], b[j][1], right + RightPanel::offset(n0 + r * RUN + column, at / 8) + at % 8 * 2);
        }
#pragma unroll
        for (int i = 0; i < TM; ++i) {
          u32 a[4];
          pair(a[0], a[2], left + LeftPanel::offset(m0 + i * 16 + line(lane), from / 8) + from % 8 * 2);
          pair(a[1], a[3], left + LeftPanel::offset(m0 + i * 16 + 8 + line(lane), from / 8) + from % 8 * 2);
#pragma unroll
          for (int j = 0; j < TN; ++j) ptx::mma_16816<T>(acc.c[i][r * TN + j], a, b[j]);
        }
      }
    }
  }

  // Where the sums of `Mma` are in the warp's tile; of a run of 4 columns half the lanes keep none.
  static __device__ __forceinline__ bool keeps(int i, int lane) { return i % TN * 8 + (lane & 3) * 2 < RUN; }
  static __device__ __forceinline__ int row(int i, int lane) { return i / (RUNS * TN) * 8 + line(lane); }
  static __device__ __forceinline__ int column(int i, int lane) {
    return i / TN % RUNS * RUN + i % TN * 8 + (lane & 3) * 2;
  }

 private:
  // Which of eight rows a lane has: of lanes 0 to 15, every second one.
  static __device__ __forceinline__ int line(int lane) { return lane / 4 % 4 * 2 + lane / 16; }
  static __device__ __forceinline__ void pair(u32& low, u32& high, const char* from) {
    uint2 both = *reinterpret_cast<const uint2*>(from);
    low = both.x, high = both.y;
  }
};

}  // namespace mt
