// The tensor-core kernel of short runs of columns, each of which is multiplied with a part of the left side of its own: a grouped
// convolution of a few channels a group. mma.m16n8k16; no sum ever meets another run's values, not even times zero.
#pragma once
#include "cuda/contract_mma.cuh"

namespace mt {

// A warp's part: WARP_M rows x whole runs of RUN columns. DEPTH: of the right panel's chunk, whose k is PLACES places by PART
// neighbours. Of each place the left panel's chunk has LINE neighbours: the parts of all the block's runs.
//
// A lane's four values of k are neighbours in memory, 8 bytes of either panel: the order of k within a product is free, as long as
// both sides have the same. Rows are dealt to lanes such that the eight-byte loads of half a warp, of several places, fall into
// all banks.
template <class T, int WARP_M, int WARP_N, int DEPTH, class LeftPanel, class RightPanel, int RUN, int PART, int LINE>
struct Runs {
  static_assert(WARP_M % 16 == 0 && WARP_N % RUN == 0, "a warp has whole runs");
  static_assert(DEPTH % 16 == 0 && DEPTH % PART == 0 && PART % 4 == 0, "four neighbours of k are of one place");
  static_assert(RUN % 4 == 0, "a thread's pairs of columns are of one run");
  static constexpr int TM = WARP_M / 16, RUNS = WARP_N / RUN, TN = ceil_div(RUN, 8);
  using Sum = float;

  struct Accumulator {
    float c[TM][RUNS][TN][4];
  };
  static __device__ __forceinline__ void clear(Accumulator& acc) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int r = 0; r < RUNS; ++r)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) acc.c[i][r][j][e] = 0;
  }

  // m0, n0: the warp's corner inside the block.
  static __device__ __forceinline__ void step(Accumulator& acc, const char* left, const char* right, int m0, int n0, int lane) {
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
          for (int j = 0; j < TN; ++j) ptx::mma_16816<T>(acc.c[i][r][j], a, b[j]);
        }
      }
    }
  }
  static __device__ __forceinline__ void finish() {}

  // The sums of a lane, as `Mma` has them; of a run of 4 columns half the lanes keep none.
  static constexpr int WIDTH = 2, FRAGMENTS = TM * RUNS * TN * 2;
  static __device__ __forceinline__ bool keeps(int i, int lane) { return i % TN * 8 + (lane & 3) * 2 < RUN; }
  static __device__ __forceinline__ int row(int i, int lane) { return i / (RUNS * TN) * 8 + line(lane); }
  static __device__ __forceinline__ int column(int i, int lane) {
    return i / TN % RUNS * RUN + i % TN * 8 + (lane & 3) * 2;
  }
  static __device__ __forceinline__ Pack<float, 2> fragment(const Accumulator& acc, int i) {
    const float(&c)[4] = acc.c[i / (2 * RUNS * TN)][i / TN % RUNS][i % TN];
    return i / (RUNS * TN) % 2 ? Pack<float, 2>{{c[2], c[3]}} : Pack<float, 2>{{c[0], c[1]}};
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
