// The configuration of a product, and what follows from it: sizes, layouts and places in shared memory.
#pragma once
#include "cuda/device/barrier.cuh"
#include "cuda/device/contract_fma.cuh"
#include "cuda/device/contract_grouped.cuh"
#include "cuda/device/contract_mma.cuh"
#include "cuda/device/contract_sparse.cuh"
#include "cuda/device/contract_wgmma.cuh"

namespace mt {

// How the products of a block are computed: `Mma`, `Fma`, `Wgmma`, `WgmmaSparse` or `Grouped`.
enum class Kernel { MMA, FMA, WGMMA, SPARSE, GROUPED };

// A product out[m, n] = sum over k of left[m, k] * right[n, k], cut for one block of threads.
struct ProductConfig {
  Kernel kernel = Kernel::MMA;
  int k = 0;                                    // the length of the sums
  int block_m = 0, block_n = 0;                 // the block of results that a team computes at once
  int block_k = 0;                              // the part of k that a pipeline stage holds: a chunk
  int warps_m = 1, warps_n = 1;                 // the warps of a slice, along the block's rows and columns
  int slices = 1;                               // split-K within the block: each slice sums its own chunks
  int depth = 0;                                // pipeline depth: the stages of a slice's ring buffer
  int vector = 1;                               // neighbouring results that one step of the epilogue takes
  int teams = 1;                                // ping-pong: teams of warps that compute a block each
  int groups = 1, group_k = 1;                  // Kernel::GROUPED: groups of columns in a block, a group's channels
  int passes = 1;                               // products of tensor cores for one of float32: 3 for all its bits, 1 for those of TF32
  int next_task_chunks = 0;                     // chunks of the worker's next task that are prefetched during this one
  int products = 1;                             // with one left operand, whose columns the block has side by side
};

template <ProductConfig CONFIG, class Left_, class Right_, class Sum_>
struct Product {
  using Left = Left_;
  using Right = Right_;
  using T = typename Left::T;
  static constexpr Kernel KERNEL = CONFIG.kernel;
  static constexpr int K = CONFIG.k;
  static constexpr int BLOCK_M = CONFIG.block_m, BLOCK_N = CONFIG.block_n, BLOCK_K = CONFIG.block_k;
  static constexpr int WARPS_M = CONFIG.warps_m, WARPS_N = CONFIG.warps_n, SLICES = CONFIG.slices;
  static constexpr int DEPTH = CONFIG.depth, VECTOR = CONFIG.vector, TEAMS = CONFIG.teams, GROUPS = CONFIG.groups;
  static_assert(K > 0, "A product needs the length `k` of its sums.");
  static_assert(BLOCK_M > 0 && BLOCK_N > 0 && BLOCK_K > 0, "A product needs `block_m`, `block_n` and `block_k`.");
  static_assert(DEPTH > 0, "A product needs a pipeline `depth` of at least one stage.");
  static_assert(WARPS_M > 0 && WARPS_N > 0 && SLICES > 0 && TEAMS > 0, "A product needs at least one warp, slice and team.");
  static_assert(BLOCK_M % WARPS_M == 0 && BLOCK_N % WARPS_N == 0, "The warps of a slice must share the block evenly.");
  static_assert(BLOCK_N % VECTOR == 0, "A row of the block must be a whole number of the epilogue's vectors.");
  static_assert(TEAMS == 1 || SLICES == 1, "A product of several teams cannot be split along k: a team has one named barrier.");
  static_assert(KERNEL == Kernel::GROUPED || GROUPS == 1, "Only Kernel::GROUPED multiplies columns in groups.");
  static_assert(KERNEL != Kernel::GROUPED || is_float16<T>, "Kernel::GROUPED multiplies float16 or bfloat16.");
  static_assert(CONFIG.passes == 1 || (same<T, float> && (KERNEL == Kernel::MMA || KERNEL == Kernel::WGMMA)),
                "Only float32 is multiplied in several passes, by tensor cores.");

  // Of several products each has EACH columns of the block, and a result is made of a sum of each.
  static constexpr int PRODUCTS = CONFIG.products, EACH = BLOCK_N / PRODUCTS;
  static_assert(BLOCK_N % PRODUCTS == 0 && EACH % VECTOR == 0, "Products side by side share a block's columns, in whole vectors.");
  static_assert(PRODUCTS == 1 || (KERNEL != Kernel::SPARSE && KERNEL != Kernel::GROUPED), "Products side by side are dense.");
  static constexpr int ROWS = min_of(Left::TASK_ROWS, BLOCK_M), COLUMNS = min_of(Right::TASK_ROWS, EACH);
  static constexpr int CHUNKS = ceil_div(K, BLOCK_K);
  static constexpr int LEFT_K = K * GROUPS, LEFT_BLOCK_K = BLOCK_K * GROUPS;
  static constexpr int SLICE_WARPS = WARPS_M * WARPS_N, SLICE_THREADS = SLICE_WARPS * 32;
  static constexpr int THREADS = SLICE_THREADS * SLICES;  // of a team
  static constexpr int WARP_M = BLOCK_M / WARPS_M, WARP_N = BLOCK_N / WARPS_N;
  static_assert(SLICE_WARPS == 1 || SLICES < 16, "Slices of several warps need a named barrier each, of which a block has 15.");

  using LeftPanel = Panel<T, PanelConfig{.rows = BLOCK_M, .k = LEFT_BLOCK_K, .k_major = Left::K_MAJOR,
                                         .folded = KERNEL == Kernel::GROUPED, .blocked = KERNEL == Kernel::SPARSE}>;
  static_assert(Right::SPARSE == (KERNEL == Kernel::SPARSE), "Kernel::SPARSE multiplies a sparse right operand, and no other does.");
  static constexpr int RIGHT_PART = Right::SPARSE ? 2 : 1;  // of so many values of k one is stored
  using RightPanel = Panel<typename Right::T, PanelConfig{.rows = BLOCK_N, .k = BLOCK_K / RIGHT_PART, .k_major = Right::K_MAJOR}>;
  using RightCopies = PanelCopies<RightPanel, CopyConfig{.copy = Right::COPY, .vector = Right::VECTOR, .rows = PRODUCTS == 1 ? COLUMNS : BLOCK_N,
                                                         .k = K / RIGHT_PART, .threads = SLICE_THREADS, .check_rows = Right::CHECK_ROWS,
                                                         .products = PRODUCTS}>;
  using LeftCopies = PanelCopies<LeftPanel, CopyConfig{.copy = Left::COPY, .vector = Left::VECTOR, .rows = ROWS, .k = LEFT_K,
                                                       .threads = SLICE_THREADS, .check_rows = Left::CHECK_ROWS}>;
  static constexpr WarpTile WARP_TILE{.m = WARP_M, .n = WARP_N, .k = BLOCK_K};

  template <Kernel, class = void>
  struct Pick {
    using type = Mma<T, WARP_TILE, LeftPanel, RightPanel, CONFIG.passes, Left::ROUNDED, Right::ROUNDED>;
  };
  template <class V>
  struct Pick<Kernel::FMA, V> {
    using type = Fma<T, Sum_, WARP_TILE, LeftPanel, RightPanel>;
  };
  template <class V>
  struct Pick<Kernel::WGMMA, V> {
    static_assert(WARPS_M % 4 == 0, "Kernel::WGMMA needs whole warpgroups: `warps_m` must be a multiple of 4.");
    static_assert(LeftPanel::BYTES % 1024 == 0 && RightPanel::BYTES % 1024 == 0,
                  "Kernel::WGMMA needs panels of a multiple of 1024 bytes.");
    template <int PASSES, class = void>
    struct In {
      using type = Wgmma<T, WARP_TILE, WARPS_M * 16, LeftPanel, RightPanel>;
    };
    template <class W>
    struct In<3, W> {
      using type = WgmmaOfParts<WARP_TILE, WARPS_M * 16, LeftPanel, RightPanel>;
    };
    using type = typename In<CONFIG.passes>::type;
  };
  template <class V>
  struct Pick<Kernel::SPARSE, V> {
    static_assert(WARPS_N % 4 == 0, "Kernel::SPARSE needs whole warpgroups: `warps_n` must be a multiple of 4.");
    static_assert(K % BLOCK_K == 0 && LeftPanel::BYTES % 1024 == 0, "Kernel::SPARSE needs whole chunks, and panels of a multiple of 1024 bytes.");
    using type = WgmmaSparse<T, WARP_TILE, WARPS_N * 16, LeftPanel, RightPanel, SLICES, CHUNKS>;
  };
  template <class V>
  struct Pick<Kernel::GROUPED, V> {
    static_assert(Left::K_MAJOR && Right::K_MAJOR, "Kernel::GROUPED reads operands whose neighbours lie along k.");
    using type = Grouped<T, WARP_TILE, LeftPanel, RightPanel,
                         ColumnGroups{.columns = BLOCK_N / GROUPS, .k = CONFIG.group_k, .line = GROUPS * CONFIG.group_k}>;
  };
  using Core = typename Pick<KERNEL>::type;
  using Sum = typename Core::Sum;
  static constexpr bool WARPGROUPS = KERNEL == Kernel::WGMMA || KERNEL == Kernel::SPARSE;  // the operands are read by warpgroups
  // Warpgroups read operands as they lie: these are rounded there. Warps round theirs in registers.
  static constexpr bool ROUNDS_TO_TF32 = WARPGROUPS && same<T, float> && CONFIG.passes == 1;
  // What TF32 leaves of a chunk's right operand, behind the ring of its slice: twice, as the chunk before is still multiplied.
  static constexpr bool RESTS = WARPGROUPS && CONFIG.passes == 3;
  static constexpr int REST_BYTES = RESTS ? RightPanel::BYTES : 0;
  // Evaluating an operand is much code. There, and for scalar products, the main loop fills the pipeline as well.
  static constexpr bool EVALUATES_OPERANDS = KERNEL == Kernel::FMA || through_registers(Left::COPY) || through_registers(Right::COPY);
  // An evaluated operand is on its way in registers, so that nothing of the next task can be prefetched.
  static constexpr int NEXT_TASK_CHUNKS = EVALUATES_OPERANDS ? 0 : CONFIG.next_task_chunks;
  static_assert(NEXT_TASK_CHUNKS == 0 || (SLICES == 1 && TEAMS == 1),
                "Only one slice of one team prefetches chunks of the next task.");
  static_assert(NEXT_TASK_CHUNKS == 0 || (NEXT_TASK_CHUNKS < DEPTH && NEXT_TASK_CHUNKS <= CHUNKS),
                "The prefetched chunks of the next task must leave a stage of the ring free, and the task must have as many.");
  // Whether the ring has room for all chunks of a slice: then it is filled once.
  static constexpr bool FILLED_ONCE = !EVALUATES_OPERANDS && ceil_div(CHUNKS, SLICES) < DEPTH;
  // Whether an iteration of the main loop ends the products that it begins.
  static constexpr bool ENDS = WARPGROUPS && (Core::PROMOTES || KERNEL == Kernel::SPARSE) && !EVALUATES_OPERANDS && DEPTH > 1;
  // How many chunks' products are under way when those of the next begin, or when a warp passes the barrier behind which others refill stages:
  // their stages are refilled so much later.
  static constexpr int IN_FLIGHT = WARPGROUPS && !Core::PROMOTES && !EVALUATES_OPERANDS && !FILLED_ONCE && DEPTH > 3 ? 1 : 0;
  // Whether the next task's chunks continue this one's in the ring, at its first stage.
  static constexpr bool CONTINUES = NEXT_TASK_CHUNKS > 0 && !FILLED_ONCE && CHUNKS % DEPTH == 0;
  static_assert(!CONTINUES || NEXT_TASK_CHUNKS < DEPTH - IN_FLIGHT,
                "The main loop prefetches no more chunks than it has free stages.");

  // The threads of the epilogue: those of whole rows of vectors, if few others are idle for that. A thread then has the same columns
  // in all its steps.
  static constexpr int ROW_VECTORS = ceil_div(COLUMNS, VECTOR), SPARE_THREADS = THREADS % ROW_VECTORS;
  static constexpr bool FIXED_COLUMNS = ROW_VECTORS <= THREADS && 8 * SPARE_THREADS <= THREADS;
  static constexpr int EPILOGUE_THREADS = FIXED_COLUMNS ? THREADS - SPARE_THREADS : THREADS;

  // Where the slices' sums meet. The pitch keeps the fragments' stores free of bank conflicts.
  static constexpr int SUM_PITCH = BLOCK_N + (BLOCK_N % 16 == 0 ? 8 : 0);
  static constexpr int STAGE_BYTES = LeftPanel::BYTES + RightPanel::BYTES;
  static_assert((STAGE_BYTES % 128 == 0 && LeftPanel::BYTES % 128 == 0) || KERNEL == Kernel::FMA,
                "Tensor cores need panels that begin at multiples of 128 bytes.");
  static constexpr int SLICE_BYTES = DEPTH * STAGE_BYTES + 2 * REST_BYTES, RING_BYTES = SLICES * SLICE_BYTES;
  static_assert(!RESTS || DEPTH > 1, "A ring of one stage has no rests.");
  static constexpr int SUMS_OFFSET = NEXT_TASK_CHUNKS * STAGE_BYTES;
  static constexpr int SUM_BYTES = SUMS_OFFSET + SLICES * BLOCK_M * SUM_PITCH * int(sizeof(Sum));
  static constexpr int TEAM_BYTES = ceil_div(max_of(RING_BYTES, SUM_BYTES), 1024) * 1024;
  static constexpr int BYTES = TEAMS > 1 ? TEAMS * TEAM_BYTES : max_of(RING_BYTES, SUM_BYTES);

  // The number of a thread within its team.
  static __device__ __forceinline__ unsigned team_thread() { return TEAMS == 1 ? threadIdx.x : threadIdx.x % THREADS; }
  // The threads of a team wait for each other.
  static __device__ __forceinline__ void barrier() {
    if constexpr (TEAMS == 1)
      block_barrier();
    else
      warps_barrier<SLICE_WARPS>(1 + threadIdx.x / THREADS);
  }
};

}  // namespace mt
