// The tensor-core kernel of a warpgroup, whose operands are read where the ring holds them.
#pragma once
#include "cuda/device/contract_mma.cuh"
#include "cuda/device/ptx/sm_90a.cuh"

namespace mt {

// A warpgroup accumulates 64 rows x TILE.n columns at once, each of its warps 16 of the rows. A thread has the sums that it would
// have of `mma`. TILE: of a warp. Its 16 rows of one warpgroup product are ROW_STRIDE rows from those of the next. If the
// right panel is not K_MAJOR its lines lie along the columns, 64 in each of its blocks; those of the left one along the rows.
// PROMOTED: a chunk's sums are added to the others in float32.
template <class T, WarpTile TILE, int ROW_STRIDE, class LeftPanel, class RightPanel, bool PROMOTED = false>
struct Wgmma : Mma<T, TILE, LeftPanel, RightPanel> {
  using Base = Mma<T, TILE, LeftPanel, RightPanel>;
  static constexpr bool LEFT_K = LeftPanel::K_MAJOR, RIGHT_K = RightPanel::K_MAJOR;
  static constexpr int COLUMNS = TILE.n;
  // Tensor cores keep 14 bits of a sum of 8-bit floats.
  static constexpr bool PROMOTES = PROMOTED || same<T, f8e4m3>;
  static_assert(LEFT_K || (is_float16<T> && LeftPanel::CELLS == 8), "A line of a left panel along m has 64 rows of 16 bits for wgmma.");
  static_assert(TILE.k * int(sizeof(T)) == 128 && LeftPanel::XOR && RightPanel::XOR, "A line of a panel for wgmma has 128 bytes.");
  static_assert(RIGHT_K || sizeof(T) == 2, "wgmma turns a right panel of 16-bit elements only.");
  static_assert(RIGHT_K || (RightPanel::CELLS == 8 && COLUMNS % 64 == 0), "A line of a right panel along n has 64 columns for wgmma.");

  struct Accumulator : Base::Accumulator {
    typename Base::Accumulator part;  // of a chunk
  };
  static __device__ __forceinline__ void clear(Accumulator& acc) {
    Base::clear(acc);
    if constexpr (PROMOTES) Base::clear(acc.part);
  }

  static __device__ __forceinline__ u32 right_address(const char* right, int n0) {
    constexpr int BLOCK = RIGHT_K ? 16 : RightPanel::BLOCK_BYTES;  // 16: not looked at
    return ptx::panel_address(ptx::shared_address(right) + (RIGHT_K ? n0 * 128 : n0 / 64 * RightPanel::BLOCK_BYTES), BLOCK);
  }

  // Begins the products of a chunk, which `finish` waits for. m0, n0: the corner of this warp inside the block.
  static __device__ __forceinline__ void step(Accumulator& acc, const char* left, const char* right,
                                              int m0, int n0, int) {
    u32 a = ptx::panel_address(ptx::shared_address(left) + (LEFT_K ? m0 / 64 * 64 * 128 : m0 / 64 * LeftPanel::BLOCK_BYTES));
    u32 b = right_address(right, n0);
    ptx::wgmma_fence();
#pragma unroll
    for (int bytes = 0; bytes < 128; bytes += 32)
#pragma unroll
      for (int i = 0; i < Base::TM; ++i) {
        const u64 rows = ptx::panel_descriptor(a, LEFT_K ? i * ROW_STRIDE * 128 + bytes : i * ROW_STRIDE / 64 * LeftPanel::BLOCK_BYTES + bytes * 64);
        const u64 columns = ptx::panel_descriptor(b, bytes * (RIGHT_K ? 1 : 64));
        using U = typename RightPanel::T;
        if constexpr (!LEFT_K)
          ptx::wgmma_by_rows<RIGHT_K>(T{}, acc.c[i], rows, columns);
        else if constexpr (!PROMOTES)
          ptx::wgmma<T, U, COLUMNS / 8, RIGHT_K>(acc.c[i], rows, columns);
        else if (bytes == 0)
          ptx::wgmma<T, U, COLUMNS / 8, RIGHT_K, false>(acc.part.c[i], rows, columns);
        else
          ptx::wgmma<T, U, COLUMNS / 8, RIGHT_K>(acc.part.c[i], rows, columns);
      }
    ptx::wgmma_commit();
  }
  // Waits for all but the newest `PENDING` chunks' products.
  template <int PENDING = 0>
  static __device__ __forceinline__ void wait(Accumulator& acc) {
    static_assert(!PROMOTES || PENDING == 0, "A chunk's sums are promoted before the next ones are begun.");
    ptx::wgmma_wait<PENDING>();
    if constexpr (PROMOTES)
#pragma unroll
      for (int i = 0; i < Base::TM; ++i) ptx::register_fence(acc.part.c[i]);
  }
  // Adds a chunk's sums, for which `wait` has waited.
  static __device__ __forceinline__ void promote(Accumulator& acc) { Base::add(acc, acc.part); }
  // Both. To be called once for each chunk, if the sums are promoted.
  template <int PENDING = 0>
  static __device__ __forceinline__ void finish(Accumulator& acc) {
    wait<PENDING>(acc);
    if constexpr (PROMOTES) promote(acc);
  }
  static __device__ __forceinline__ int row(int i, int lane) {
    constexpr int HALVES = Base::FRAGMENTS / Base::TM;
    return i / HALVES * ROW_STRIDE + Base::row(i % HALVES, lane);
  }
};

// float32 in three passes, as `Mma` has them. A warp has its rows of the left operand in registers, and what TF32 leaves of them; what it
// leaves of the right one lies in a panel of its own, `rest`.
template <WarpTile TILE, int ROW_STRIDE, class LeftPanel, class RightPanel>
struct WgmmaOfParts : Wgmma<float, TILE, ROW_STRIDE, LeftPanel, RightPanel, true> {
  using Base = Wgmma<float, TILE, ROW_STRIDE, LeftPanel, RightPanel, true>;
  static constexpr int K = 8, STEPS = TILE.k / K, TN = Base::TN;  // values of k in an instruction
  static_assert(TILE.m == 16, "A warp holds 16 rows of a left operand in parts.");

  struct Accumulator : Base::Accumulator {
    u32 high[STEPS][4], low[STEPS][4];  // of a chunk's left operand, until its products are done
  };

  // Of a chunk, before `step`.
  static __device__ __forceinline__ void load(Accumulator& acc, const char* left, int m0, int lane) {
    const auto rows = Fragments<LeftPanel>::template of<true>(left, m0, lane);
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      rows.left(acc.high[s], 0, s * K);
      rests(acc.low[s], acc.high[s]);
    }
  }
  static __device__ __forceinline__ void step(Accumulator& acc, const char* right, const char* rest, int n0) {
    const u32 b = Base::right_address(right, n0), b_low = Base::right_address(rest, n0);
    auto columns = [](u32 panel, int s) { return ptx::panel_descriptor(panel, s * K * int(sizeof(float))); };
    ptx::register_fence(acc.high);
    ptx::register_fence(acc.low);
    ptx::wgmma_fence();
    ptx::wgmma<float, TN, false>(acc.part.c[0], acc.low[0], columns(b, 0));
#pragma unroll
    for (int s = 1; s < STEPS; ++s) ptx::wgmma<float>(acc.part.c[0], acc.low[s], columns(b, s));
#pragma unroll
    for (int s = 0; s < STEPS; ++s) ptx::wgmma<float>(acc.part.c[0], acc.high[s], columns(b_low, s));
#pragma unroll
    for (int s = 0; s < STEPS; ++s) ptx::wgmma<float>(acc.part.c[0], acc.high[s], columns(b, s));
    ptx::wgmma_commit();
  }
  static __device__ __forceinline__ void wait(Accumulator& acc) {
    Base::wait(acc);
    ptx::register_fence(acc.high);
    ptx::register_fence(acc.low);
  }
  static __device__ __forceinline__ void finish(Accumulator& acc) {
    wait(acc);
    Base::promote(acc);
  }
};

}  // namespace mt
