// Products cut in one way each, LAYERS times in a row with a barrier of the grid between them, as a network's stages are. Each finds its
// weights in device memory: there are `copies` of them, more than the last-level cache holds. `products.py` writes the kernels behind this.
#include "cuda/device/contract.cuh"

using namespace mt;

struct Given {
  u32* sync;
  const f16 *a, *b;
  float* c;
  int copies;
};

template <class S, int M, int N, int PARTS, int TILE_M, int TILE_N>
__device__ __forceinline__ void product(const Given& given, GridBarrier& grid, int layer) {
  constexpr bool RIGHT_K = S::Right::K_MAJOR;
  constexpr int DOWN = ceil_div(M, TILE_M), ACROSS = ceil_div(N, TILE_N), K = S::K * PARTS;
  const f16* weights = given.b + size_t(layer % given.copies) * N * K;
  grid.arrive();
  if (int task = blockIdx.x; task < DOWN * ACROSS * PARTS) {
    int part = task / (DOWN * ACROSS), m = task / ACROSS % DOWN * TILE_M, n = task % ACROSS * TILE_N;
    Linear<f16, K, 1> left{given.a + part * S::K};
    Linear<f16, RIGHT_K ? K : 1, RIGHT_K ? 1 : N> right{weights + part * S::K * (RIGHT_K ? 1 : N)};
    contract<S>(ptx::shared_memory(), m, min_of(m + TILE_M, M), n, min_of(n + TILE_N, N), left, right, [&] { grid.await(); },
                [](int, int) { return Nothing{}; },
                [&](int row, int column, const Pack<float, S::VECTOR>& sums, Nothing, bool valid) {
                  if constexpr (PARTS > 1) {
                    store_if(valid, given.c + (size_t(part) * M + row) * N + column, sums);
                  } else {
                    Pack<f16, S::VECTOR> y;
                    for (int i = 0; i < S::VECTOR; ++i) y[i] = cast<f16>(sums[i]);
                    store_if(valid, reinterpret_cast<f16*>(given.c) + row * N + column, y);
                  }
                });
  } else {
    grid.await();
  }
}

template <int M, int N, int K, int PARTS, Kernel KERNEL, bool RIGHT_K, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARPS_M,
          int WARPS_N, int SLICES, int DEPTH, int TILE_M, int TILE_N>
__device__ __forceinline__ void chain(const Given& given, int layers) {
  using Left = Side<f16, SideConfig{.vector = 8, .check_rows = M % TILE_M != 0, .task_rows = TILE_M}>;
  using Right = Side<f16, SideConfig{.k_major = RIGHT_K,
                                     .vector = 8,
                                     .check_rows = N % TILE_N != 0 || (!RIGHT_K && TILE_N < BLOCK_N),
                                     .task_rows = TILE_N}>;
  using S = Product<ProductConfig{.kernel = KERNEL,
                                  .k = K / PARTS,
                                  .block_m = BLOCK_M,
                                  .block_n = BLOCK_N,
                                  .block_k = BLOCK_K,
                                  .warps_m = WARPS_M,
                                  .warps_n = WARPS_N,
                                  .slices = SLICES,
                                  .depth = DEPTH,
                                  .vector = 4},
                    Left, Right, float>;
  GridBarrier grid(given.sync);
  for (int layer = 0; layer < layers; ++layer) product<S, M, N, PARTS, TILE_M, TILE_N>(given, grid, layer);
  grid.leave();
}
