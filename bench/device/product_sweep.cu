// Template of product_sweep.py: a product cut in one way, 96 times in a row. Prints
//   m n k parts instruction major, the way's numbers, a task's rows and columns, microseconds of one with its barrier
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "cuda/device/contract.cuh"

using namespace mt;

constexpr int LAYERS = 96;
constexpr size_t WEIGHT_BYTES = 100 << 20;  // twice the L2: each product finds its weights in device memory

#define CUDA(call)                                                         \
  if (cudaError_t e = (call); e != cudaSuccess) {                          \
    std::printf("line %d: %s\n", __LINE__, cudaGetErrorString(e));         \
    std::exit(1);                                                          \
  }

struct Given {
  u32* sync;
  const f16 *a, *b;
  float* c;
};

template <class S, int M, int N, int PARTS, int TILE_M, int TILE_N>
__global__ void __launch_bounds__(256, 1) chain(Given given, int copies) {
  extern __shared__ __align__(1024) char shared[];
  GridBarrier grid(given.sync);
  constexpr bool RIGHT_K = S::Right::K_MAJOR;
  constexpr int DOWN = ceil_div(M, TILE_M), ACROSS = ceil_div(N, TILE_N), K = S::K * PARTS;
  for (int l = 0; l < LAYERS; ++l) {
    const f16* weights = given.b + size_t(l % copies) * N * K;
    grid.arrive();
    if (int task = blockIdx.x; task < DOWN * ACROSS * PARTS) {
      int part = task / (DOWN * ACROSS), m = task / ACROSS % DOWN * TILE_M, n = task % ACROSS * TILE_N;
      Linear<f16, K, 1> left{given.a + part * S::K};
      Linear<f16, RIGHT_K ? K : 1, RIGHT_K ? 1 : N> right{weights + part * S::K * (RIGHT_K ? 1 : N)};
      contract<S>(shared, m, min_of(m + TILE_M, M), n, min_of(n + TILE_N, N), left, right, [&] { grid.await(); },
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
  grid.leave();
}

template <int M, int N, int K, int PARTS, Kernel KERNEL, bool RIGHT_K, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARPS_M,
          int WARPS_N, int SLICES, int DEPTH, int TILE_M, int TILE_N>
void sweep(Given given) {
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
  auto kernel = chain<S, M, N, PARTS, TILE_M, TILE_N>;
  CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
  int device, workers, copies = std::max(1, int(WEIGHT_BYTES / (sizeof(f16) * N * K)));
  CUDA(cudaGetDevice(&device));
  CUDA(cudaDeviceGetAttribute(&workers, cudaDevAttrMultiProcessorCount, device));
  cudaEvent_t begin, end;
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  float best = 1e9;
  for (int round = 0; round < 6; ++round) {
    void* args[] = {&given, &copies};
    CUDA(cudaEventRecord(begin));
    CUDA(cudaLaunchCooperativeKernel((void*)kernel, workers, 256, args, S::BYTES, 0));
    CUDA(cudaEventRecord(end));
    CUDA(cudaEventSynchronize(end));
    float spent;
    CUDA(cudaEventElapsedTime(&spent, begin, end));
    best = std::min(best, spent);
  }
  std::printf("%d %d %d %d %s %s %d %d %d %d %d %d %d %d %d %.2f\n", M, N, K, PARTS, KERNEL == Kernel::MMA ? "mma" : "wgmma",
              RIGHT_K ? "k" : "mn", BLOCK_M, BLOCK_N, BLOCK_K, WARPS_M, WARPS_N, SLICES, DEPTH, TILE_M, TILE_N, best * 1e3 / LAYERS);
}

int main() {
  Given given;
  f16 *a, *b;
  CUDA(cudaMalloc(&a, 64 << 20));
  CUDA(cudaMalloc(&b, WEIGHT_BYTES + (32 << 20)));
  CUDA(cudaMalloc(&given.c, 64 << 20));
  CUDA(cudaMalloc(&given.sync, 256));
  CUDA(cudaMemset(a, 0, 64 << 20));
  CUDA(cudaMemset(b, 0, WEIGHT_BYTES + (32 << 20)));
  CUDA(cudaMemset(given.sync, 0, 256));
  given.a = a, given.b = b;
  // CALLS
}
