// The scalar kernel of a warp: any element type, products and sums in Sum, one register tile a thread.
#pragma once
#include "cuda/device/contract_mma.cuh"

namespace mt {

// How 32 lanes share a warp_m x warp_n tile: LANES_M x LANES_N of them, each TM x TN sums, picked so that a thread reads
// the fewest operands. Lanes interleave in units of `unit` rows, the neighbours that one load of a panel brings.
struct LaneTile {
  int lanes_m, lanes_n;
};
__host__ __device__ constexpr LaneTile lane_tile(int warp_m, int warp_n) {
  LaneTile best = {0, 0};
  int cost = 1 << 30;
  for (int lm = 1; lm <= 32; lm *= 2) {
    int ln = 32 / lm;
    if (warp_m % lm != 0 || warp_n % ln != 0) continue;
    int c = warp_m / lm + warp_n / ln;
    if (c < cost) cost = c, best = {lm, ln};
  }
  return best;
}
__host__ __device__ constexpr int unit_of(int count, int limit) {
  int u = 1;
  while (u * 2 <= limit && count % (u * 2) == 0) u *= 2;
  return u;
}

template <class T, class Sum_, WarpTile TILE, class LeftPanel, class RightPanel>
struct Fma {
  using Sum = Sum_;
  static constexpr bool LEFT_K = LeftPanel::K_MAJOR, RIGHT_K = RightPanel::K_MAJOR;
  static constexpr LaneTile LANES = lane_tile(TILE.m, TILE.n);
  static_assert(LANES.lanes_m > 0, "The 32 lanes of a warp cannot share its tile evenly.");
  static constexpr int TM = TILE.m / LANES.lanes_m, TN = TILE.n / LANES.lanes_n;
  static constexpr int STEP = 16 / int(sizeof(T));  // k values taken at once: one cell
  static_assert(TILE.k % STEP == 0, "A chunk of scalar products is a multiple of 16 bytes along k.");
  static constexpr int UM = LEFT_K ? 1 : unit_of(TM, STEP), UN = RIGHT_K ? 1 : unit_of(TN, STEP);

  struct Accumulator {
    Sum c[TM][TN];
  };

  static __device__ __forceinline__ void clear(Accumulator& acc) {
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int j = 0; j < TN; ++j) acc.c[i][j] = Sum(0);
  }

  // Row of the tile that is sum number `i` of lane `lane` of `lanes`.
  template <int UNIT>
  static __device__ __forceinline__ int place(int i, int lane, int lanes) {
    return ((i / UNIT) * lanes + lane) * UNIT + i % UNIT;
  }

  // COUNT rows by STEP values of k of one operand, in registers.
  template <class Panel, int COUNT, int UNIT>
  static __device__ __forceinline__ void read(T (&out)[COUNT][STEP], const char* panel, int row0,
                                              int k, int lane, int lanes) {
    if constexpr (Panel::K_MAJOR) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        auto cell = *reinterpret_cast<const Pack<T, STEP>*>(
            panel + Panel::offset(row0 + place<UNIT>(i, lane, lanes), k / STEP));
#pragma unroll
        for (int e = 0; e < STEP; ++e) out[i][e] = cell[e];
      }
    } else {
#pragma unroll
      for (int e = 0; e < STEP; ++e)
#pragma unroll
        for (int i = 0; i < COUNT; i += UNIT) {
          int row = row0 + place<UNIT>(i, lane, lanes);
          auto part = *reinterpret_cast<const Pack<T, UNIT>*>(
              panel + Panel::offset(k + e, row / Panel::UNIT) +
              (row % Panel::UNIT) * int(sizeof(T)));
#pragma unroll
          for (int u = 0; u < UNIT; ++u) out[i + u][e] = part[u];
        }
    }
  }

  static __device__ __forceinline__ void step(Accumulator& acc, const char* left, const char* right,
                                              int m0, int n0, int lane) {
    int lm = lane / LANES.lanes_n, ln = lane % LANES.lanes_n;
#pragma unroll 2  // the loads of one step hide behind the products of the other
    for (int k = 0; k < TILE.k; k += STEP) {
      T a[TM][STEP], b[TN][STEP];
      read<LeftPanel, TM, UM>(a, left, m0, k, lm, LANES.lanes_m);
      read<RightPanel, TN, UN>(b, right, n0, k, ln, LANES.lanes_n);
#pragma unroll
      for (int e = 0; e < STEP; ++e)
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
          for (int j = 0; j < TN; ++j)
            acc.c[i][j] += cast<Sum>(a[i][e]) * cast<Sum>(b[j][e]);
    }
  }

  static constexpr bool PROMOTES = false;
  static __device__ __forceinline__ void finish(Accumulator&) {}

  // The sums of a lane: fragment i is WIDTH neighbours along n at (row, column) of the warp's tile.
  static constexpr int WIDTH = UN, FRAGMENTS = TM * (TN / UN);
  static __device__ __forceinline__ bool keeps(int, int) { return true; }
  static __device__ __forceinline__ int row(int i, int lane) {
    return place<UM>(i / (TN / UN), lane / LANES.lanes_n, LANES.lanes_m);
  }
  static __device__ __forceinline__ int column(int i, int lane) {
    return place<UN>(i % (TN / UN) * UN, lane % LANES.lanes_n, LANES.lanes_n);
  }
  static __device__ __forceinline__ Pack<Sum, UN> fragment(const Accumulator& acc, int i) {
    Pack<Sum, UN> out;
#pragma unroll
    for (int u = 0; u < UN; ++u) out[u] = acc.c[i / (TN / UN)][i % (TN / UN) * UN + u];
    return out;
  }
};

}  // namespace mt
