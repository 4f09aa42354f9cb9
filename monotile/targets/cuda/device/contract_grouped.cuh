// The tensor-core kernel of grouped products, such as a grouped convolution of a few channels a group: each group of columns is
// multiplied with its own part of the left operand. mma.m16n8k16. No sum takes values of another group, not even times zero.
#pragma once
#include "cuda/device/contract_mma.cuh"

namespace mt {

// The groups of a block's columns. A chunk's k is a list of places (of a convolution's filter), each with `k` neighbours (channels
// of a group). For each place the left panel has a line of the channels of all groups of the block.
struct ColumnGroups {
  int columns = 0;  // of a group
  int k = 0;        // channels of a group
  int line = 0;     // channels of all groups of the block
};

// The tile of a warp that has whole groups: each takes whole fragments of 8 columns.
__host__ __device__ constexpr WarpTile padded_tile(WarpTile tile, ColumnGroups groups) {
  return {tile.m, tile.n / groups.columns * ceil_div(groups.columns, 8) * 8, tile.k};
}

// A warp's TILE of such a product. A lane's four values of k are neighbours in memory, 8 bytes of either panel: the order of k
// within a product is free, as long as both operands have the same. The rows of a lane are chosen such that the 8-byte loads of
// half a warp, of several places, fall into all banks.
template <class T, WarpTile TILE, class LeftPanel, class RightPanel, ColumnGroups COLUMN_GROUPS>
struct Grouped : Mma<T, padded_tile(TILE, COLUMN_GROUPS), LeftPanel, RightPanel> {
  using Base = Mma<T, padded_tile(TILE, COLUMN_GROUPS), LeftPanel, RightPanel>;
  using Base::TM;
  static constexpr int COLUMNS = COLUMN_GROUPS.columns, CHANNELS = COLUMN_GROUPS.k, LINE = COLUMN_GROUPS.line;
  static constexpr int GROUPS = TILE.n / COLUMNS, TN = ceil_div(COLUMNS, 8);  // groups of the warp; fragments of a group
  static_assert(TILE.n % COLUMNS == 0, "A warp's tile of a grouped product has whole groups.");
  static_assert(TILE.k % CHANNELS == 0 && CHANNELS % 4 == 0, "A group has a multiple of 4 channels, and a chunk whole places.");
  static_assert(COLUMNS % 4 == 0, "A group has a multiple of 4 columns: a thread's pairs of columns belong to one group.");

  // m0, n0: the warp's corner inside the block.
  static __device__ __forceinline__ void step(typename Base::Accumulator& acc, const char* left, const char* right,
                                              int m0, int n0, int lane) {
#pragma unroll
    for (int k = 0; k < TILE.k; k += 16) {
      int at = k + lane % 4 * 4;
      int from = at / CHANNELS * LINE + n0 / COLUMNS * CHANNELS + at % CHANNELS;
#pragma unroll
      for (int r = 0; r < GROUPS; ++r, from += CHANNELS) {
        u32 b[TN][2];
#pragma unroll
        for (int j = 0; j < TN; ++j) {
          int column = j * 8 + (COLUMNS - j * 8 < 8 ? lane / 4 % 4 : lane / 4);  // beyond the group: any, as their sums are not kept
          pair(b[j][0], b[j][1], right + RightPanel::offset(n0 + r * COLUMNS + column, at / 8) + at % 8 * 2);
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

  // Where the sums of `Mma` are in the warp's tile; of a group of 4 columns half the lanes keep none.
  static __device__ __forceinline__ bool keeps(int i, int lane) { return i % TN * 8 + (lane & 3) * 2 < COLUMNS; }
  static __device__ __forceinline__ int row(int i, int lane) { return i / (GROUPS * TN) * 8 + line(lane); }
  static __device__ __forceinline__ int column(int i, int lane) {
    return i / TN % GROUPS * COLUMNS + i % TN * 8 + (lane & 3) * 2;
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
