// Checks contract.cuh against a plain loop over shapes, layouts and configurations, then times BERT-base's products.
//   nvcc -std=c++20 -O3 -arch=sm_90a -I monotile/device bench/device/contract_bench.cu -o /tmp/contract_bench
//   /tmp/contract_bench            (or: compute-sanitizer --tool racecheck /tmp/contract_bench check)
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cuda/device/contract.cuh"

void cuda(cudaError_t e, int line) {
  if (e == cudaSuccess) return;
  std::printf("line %d: %s\n", line, cudaGetErrorString(e));
  std::exit(1);
}
#define CUDA(call) cuda((call), __LINE__)

using namespace mt;

// A matrix of rows x k values, contiguous along k or along the rows.
template <class T, bool K_MAJOR, int ROWS, int K, int V>
struct Matrix {
  static constexpr bool LINEAR = false, GUARDED = false;
  static constexpr int ROW_STEP = 0, K_STEP = 0;
  const T* data;
  __device__ __forceinline__ const T* address(int row, int k) const {
    return K_MAJOR ? data + row * K + k : data + k * ROWS + row;
  }
  __device__ __forceinline__ Source<T> source(int row, int k) const { return {address(row, k), true}; }
  __device__ __forceinline__ Pack<T, V> values(int row, int k) const { return load<V>(address(row, k)); }
};
template <class T, class Sum, int N, int W>
struct Store {
  T* out;
  __device__ __forceinline__ void operator()(int m, int n, const Pack<Sum, W>& sums) const {
    Pack<T, W> y;
#pragma unroll
    for (int i = 0; i < W; ++i) y[i] = cast<T>(sums[i]);
    store(out + m * N + n, y);
  }
};

// Every block of an M x N product, dealt to the workers in order.
template <class S, int M, int N>
__device__ __forceinline__ void product(char* shared, const typename S::T* a, const typename S::T* b,
                                        typename S::T* c) {
  using T = typename S::T;
  constexpr int DOWN = ceil_div(M, S::BLOCK_M), ACROSS = ceil_div(N, S::BLOCK_N);
  Matrix<T, S::Left::K_MAJOR, M, S::K, S::Left::VECTOR> left{a};
  Matrix<T, S::Right::K_MAJOR, N, S::K, S::Right::VECTOR> right{b};
  Store<T, typename S::Sum, N, S::VECTOR> epilogue{c};
  for (int task = blockIdx.x; task < DOWN * ACROSS; task += gridDim.x) {
    int m = task % DOWN * S::BLOCK_M, n = task / DOWN * S::BLOCK_N;
    contract<S>(shared, m, min_of(m + S::BLOCK_M, M), n, min_of(n + S::BLOCK_N, N), left, right,
                epilogue);
  }
}

template <class S, int M, int N>
__global__ void __launch_bounds__(S::THREADS, 1)
    one(const typename S::T* a, const typename S::T* b, typename S::T* c) {
  extern __shared__ __align__(128) char shared[];
  product<S, M, N>(shared, a, b, c);
}

template <class T>
__global__ void fill(T* p, size_t n, float scale, unsigned seed) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
    unsigned v = unsigned(i) * 2654435761u + seed;
    v ^= v >> 15, v *= 2246822519u, v ^= v >> 13;
    p[i] = cast<T>(((v & 0xffff) / 65536.f - 0.5f) * scale);
  }
}
template <class T, bool LK, bool RK>
__global__ void naive(const T* a, const T* b, const T* c, double* error, int M, int N, int K) {
  double worst = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < M * N; i += gridDim.x * blockDim.x) {
    int m = i / N, n = i % N;
    double want = 0, size = 0;
    for (int k = 0; k < K; ++k) {
      double p = double(widen(LK ? a[m * K + k] : a[k * M + m])) * double(widen(RK ? b[n * K + k] : b[k * N + n]));
      want += p, size += fabs(p);
    }
    double off = fabs(double(widen(c[i])) - want) / (size + 1e-30);
    if (!(off <= worst)) worst = off;  // keeps NaN
  }
  if (!(worst <= 1e300)) worst = 1e300;
  atomicMax(reinterpret_cast<unsigned long long*>(error), __double_as_longlong(worst));
}

int failures = 0;
template <class S, int M, int N>
void check(const char* name) {
  using T = typename S::T;
  T *a, *b, *c;
  double* error;
  CUDA(cudaMalloc(&a, sizeof(T) * M * S::K));
  CUDA(cudaMalloc(&b, sizeof(T) * N * S::K));
  CUDA(cudaMalloc(&c, sizeof(T) * M * N));
  CUDA(cudaMallocManaged(&error, 8));
  *error = 0;
  fill<T><<<64, 256>>>(a, size_t(M) * S::K, 2, 1);
  fill<T><<<64, 256>>>(b, size_t(N) * S::K, 2, 2);
  CUDA(cudaMemset(c, 0xff, sizeof(T) * M * N));
  CUDA(cudaFuncSetAttribute(one<S, M, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES));
  one<S, M, N><<<7, S::THREADS, S::BYTES>>>(a, b, c);
  CUDA(cudaGetLastError());
  naive<T, S::Left::K_MAJOR, S::Right::K_MAJOR><<<64, 256>>>(a, b, c, error, M, N, S::K);
  CUDA(cudaDeviceSynchronize());
  double limit = same<T, f16> ? 6e-4 : same<T, bf16> ? 5e-3 : same<T, float> ? 1e-6 : 1e-15;
  bool good = *error <= limit;
  failures += !good;
  std::printf("%s %-58s %4d x %4d x %4d  error %.1e\n", good ? "ok  " : "FAIL", name, M, N, S::K, *error);
  CUDA(cudaFree(a)), CUDA(cudaFree(b)), CUDA(cudaFree(c)), CUDA(cudaFree(error));
}


// Side of a check: element type, 'k' or 'r' (contiguous along k or the rows), copy, vector.
template <class T, char MAJOR, Copy COPY, int VECTOR, bool CHECKED = true>
using On = Side<T, SideConfig{.k_major = MAJOR == 'k', .copy = COPY, .vector = VECTOR, .check_rows = CHECKED}>;
constexpr Copy A = Copy::ASYNC, E = Copy::ELEMENT;
constexpr Kernel MMA = Kernel::MMA, FMA = Kernel::FMA;

// A product of K, cut as a row of the lists below says.
template <Kernel KERNEL, class L, class R, class Sum, int K, int BLOCK_M, int BLOCK_N, int BLOCK_K, int WARPS_M, int WARPS_N, int SLICES,
          int DEPTH, int VECTOR>
using Cut = Product<ProductConfig{.kernel = KERNEL,
                                  .k = K,
                                  .block_m = BLOCK_M,
                                  .block_n = BLOCK_N,
                                  .block_k = BLOCK_K,
                                  .warps_m = WARPS_M,
                                  .warps_n = WARPS_N,
                                  .slices = SLICES,
                                  .depth = DEPTH,
                                  .vector = VECTOR},
                    L, R, Sum>;

// numbers: K, block m, n, k, warps m, n, slices, depth, vector
template <Kernel KERNEL, class L, class R, class Sum, int M, int N, int... NUMBERS>
void run(const char* name) {
  check<Cut<KERNEL, L, R, Sum, NUMBERS...>, M, N>(name);
}
#define CHECK(...) run<__VA_ARGS__>(#__VA_ARGS__)

void checks() {
  using HK = On<f16, 'k', A, 8>;
  using HR = On<f16, 'r', A, 8>;
  using BK = On<bf16, 'k', A, 8>;
  using BR = On<bf16, 'r', A, 8>;
  using FK = On<float, 'k', A, 4>;
  using FR = On<float, 'r', A, 4>;
  using HKF = On<f16, 'k', A, 8, false>;
  using HRF = On<f16, 'r', A, 8, false>;
  using On0 = On<f16, 'k', A, 4>;
  using On1 = On<f16, 'k', A, 2>;
  using On2 = On<f16, 'r', A, 2>;
  using On3 = On<f16, 'r', A, 4>;
  using On4 = On<f16, 'k', E, 1>;
  using On5 = On<f16, 'r', E, 1>;
  using On6 = On<f16, 'k', E, 8>;
  using On7 = On<f16, 'r', E, 8>;
  using On8 = On<float, 'k', A, 1>;
  using On9 = On<float, 'r', E, 1>;
  using On10 = On<double, 'k', A, 2>;
  using On11 = On<double, 'k', A, 1>;
  // the shapes of BERT
  CHECK(MMA, HKF, HKF, float, 128, 2320, 768, 64, 40, 32, 1, 1, 8, 4, 4);
  CHECK(MMA, HKF, HK, float, 128, 2304, 768, 64, 40, 32, 1, 1, 8, 4, 4);
  CHECK(MMA, HKF, HKF, float, 128, 3072, 768, 64, 48, 32, 1, 1, 8, 3, 4);
  CHECK(MMA, HKF, HKF, float, 128, 768, 3072, 32, 24, 64, 1, 1, 8, 4, 8);
  // layouts
  CHECK(MMA, HKF, HRF, float, 128, 128, 256, 64, 64, 32, 1, 1, 8, 3, 4);
  CHECK(MMA, HRF, HKF, float, 128, 128, 256, 64, 64, 32, 1, 1, 8, 3, 4);
  CHECK(MMA, HRF, HRF, float, 128, 128, 256, 64, 64, 32, 1, 1, 8, 3, 4);
  CHECK(MMA, HKF, HRF, float, 128, 120, 256, 64, 40, 32, 1, 1, 8, 3, 4);
  CHECK(MMA, HRF, HKF, float, 96, 48, 256, 48, 24, 32, 1, 1, 8, 3, 4);
  CHECK(MMA, BK, BR, float, 100, 72, 200, 64, 40, 64, 1, 1, 4, 3, 4);
  CHECK(MMA, BR, BK, float, 104, 70, 136, 32, 24, 16, 1, 1, 8, 5, 2);
  // several warps a slice, one slice
  CHECK(MMA, HK, HK, float, 250, 250, 768, 128, 128, 32, 2, 4, 1, 4, 2);
  CHECK(MMA, HK, HR, float, 250, 248, 768, 128, 128, 64, 4, 2, 1, 3, 4);
  CHECK(MMA, HK, HK, float, 250, 250, 768, 64, 64, 64, 2, 2, 2, 3, 2);
  CHECK(MMA, HR, HR, float, 152, 88, 96, 64, 80, 32, 1, 2, 4, 2, 4);
  CHECK(MMA, HK, HK, float, 77, 33, 40, 32, 16, 16, 2, 1, 2, 1, 1);
  // narrow copies, evaluated operands
  CHECK(MMA, On0, On1, float, 40, 50, 84, 32, 24, 32, 1, 1, 4, 3, 2);
  CHECK(MMA, On2, On3, float, 42, 52, 83, 32, 24, 32, 1, 1, 4, 3, 4);
  CHECK(MMA, On4, On5, float, 41, 51, 83, 32, 24, 32, 1, 1, 4, 3, 1);
  CHECK(MMA, On6, HK, float, 41, 56, 88, 64, 64, 32, 2, 2, 2, 3, 8);
  CHECK(MMA, HK, On7, float, 41, 56, 88, 64, 64, 32, 2, 2, 2, 2, 8);
  // float32 and float64
  CHECK(FMA, FK, FK, float, 100, 100, 256, 32, 32, 32, 1, 1, 8, 3, 4);
  CHECK(FMA, FR, FR, float, 100, 100, 250, 64, 64, 16, 1, 1, 8, 2, 4);
  CHECK(FMA, FK, FR, float, 128, 96, 252, 64, 32, 16, 1, 1, 8, 3, 4);
  CHECK(FMA, FK, FK, float, 128, 128, 256, 128, 128, 16, 4, 2, 1, 3, 1);
  CHECK(FMA, FK, FR, float, 128, 128, 256, 128, 128, 16, 2, 4, 1, 3, 4);
  CHECK(FMA, On8, On8, float, 10, 77, 36, 8, 16, 16, 1, 1, 8, 4, 1);
  CHECK(FMA, On9, FK, float, 16, 40, 64, 16, 40, 16, 1, 1, 4, 2, 2);
  CHECK(FMA, HK, HR, float, 65, 64, 96, 32, 32, 32, 1, 1, 8, 2, 2);
  CHECK(FMA, On10, On11, double, 33, 31, 100, 32, 16, 16, 1, 1, 8, 2, 1);
}

// BERT-base's products with a grid barrier after each: one kind 48 times over, then the whole chain.
struct Weights {
  const f16* of[48];
};
template <class S, int M, int N>
__global__ void __launch_bounds__(S::THREADS, 1) repeated(Weights w, f16* x, f16* y, u32* sync, int times) {
  extern __shared__ __align__(128) char shared[];
  GridBarrier grid(sync);
  for (int i = 0; i < times; ++i) {
    product<S, M, N>(shared, x, w.of[i], y);
    grid.wait();
  }
  grid.leave();
}
template <class Q, class O, class F, class G>
__global__ void __launch_bounds__(Q::THREADS, 1) chain(Weights w, f16* x, f16* y, f16* z, u32* sync) {
  extern __shared__ __align__(128) char shared[];
  GridBarrier grid(sync);
  for (int layer = 0; layer < 12; ++layer) {
    const f16* const* p = w.of + layer * 4;
    product<Q, 128, 2304>(shared, x, p[0], y);
    grid.wait();
    product<O, 128, 768>(shared, y, p[1], x);
    grid.wait();
    product<F, 128, 3072>(shared, x, p[2], z);
    grid.wait();
    product<G, 128, 768>(shared, z, p[3], x);
    grid.wait();
  }
  grid.leave();
}

float microseconds(const void* kernel, void** arguments, int threads, int bytes, int workers) {
  CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  cudaEvent_t begin, end;
  CUDA(cudaEventCreate(&begin)), CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 13; ++i) {
    CUDA(cudaEventRecord(begin));
    CUDA(cudaLaunchCooperativeKernel(kernel, workers, threads, arguments, bytes, 0));
    CUDA(cudaEventRecord(end));
    CUDA(cudaEventSynchronize(end));
    float ms;
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) times.push_back(ms * 1e3f);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

struct Bench {
  Weights weights;
  f16 *x, *y, *z;
  u32* sync;
  int workers;

  Bench() {
    CUDA(cudaDeviceGetAttribute(&workers, cudaDevAttrMultiProcessorCount, 0));
    for (int i = 0; i < 48; ++i) {
      f16* w;
      CUDA(cudaMalloc(&w, 768 * 3072 * 2));
      fill<f16><<<512, 256>>>(w, 768 * 3072, 0.12f, i * 77 + 1);
      weights.of[i] = w;
    }
    CUDA(cudaMalloc(&x, 128 * 3072 * 2)), CUDA(cudaMalloc(&y, 128 * 3072 * 2)), CUDA(cudaMalloc(&z, 128 * 3072 * 2));
    CUDA(cudaMalloc(&sync, 128)), CUDA(cudaMemset(sync, 0, 128));
    fill<f16><<<512, 256>>>(x, 128 * 3072, 2.f, 9);
  }
  // block m, n, k, warps m, n, slices, depth, vector
  template <int N, int K, int... NUMBERS>
  void phase(const char* name) {
    using S = Cut<MMA, On<f16, 'k', A, 8, false>, On<f16, 'k', A, 8, true>, float, K, NUMBERS...>;
    if constexpr (S::BYTES > 232448) {
      std::printf("%-52s %7d bytes of shared memory: too many\n", name, S::BYTES);
    } else {
      int times = 48;
      void* arguments[] = {&weights, &x, &y, &sync, &times};
      float t = microseconds(reinterpret_cast<const void*>(repeated<S, 128, N>), arguments, S::THREADS, S::BYTES, workers);
      cudaFuncAttributes info;
      CUDA(cudaFuncGetAttributes(&info, repeated<S, 128, N>));
      int tiles = ceil_div(128, S::BLOCK_M) * ceil_div(N, S::BLOCK_N);
      std::printf("%-52s tiles %4d regs %3d spill %3d shared %6d  %6.2f us a phase\n", name, tiles, info.numRegs,
                  int(info.localSizeBytes), S::BYTES, t / 48);
    }
  }
  template <class Q, class O, class F, class G>
  void whole(const char* name) {
    void* arguments[] = {&weights, &x, &y, &z, &sync};
    constexpr int BYTES = max_of(max_of(Q::BYTES, O::BYTES), max_of(F::BYTES, G::BYTES));
    float t = microseconds(reinterpret_cast<const void*>(chain<Q, O, F, G>), arguments, Q::THREADS, BYTES, workers);
    u32 left[2];
    CUDA(cudaMemcpy(left, sync, 8, cudaMemcpyDeviceToHost));
    std::printf("%-52s %6.1f us, sync left at %u %u\n", name, t, left[0], left[1]);
  }
};
#define PHASE(...) bench.phase<__VA_ARGS__>(#__VA_ARGS__)

int main(int argc, char** argv) {
  checks();
  std::printf("%d failures\n", failures);
  if (argc > 1 && !std::strcmp(argv[1], "check")) return failures != 0;
  Bench bench;
  // N, K, block m, n, k, warps m, n, slices, depth, vector
  PHASE(2304, 768, 64, 40, 32, 1, 1, 8, 4, 2);
  PHASE(2304, 768, 64, 40, 32, 1, 1, 8, 4, 4);
  PHASE(2304, 768, 64, 40, 32, 1, 1, 8, 4, 8);
  PHASE(2304, 768, 64, 40, 32, 1, 1, 8, 3, 4);
  PHASE(2304, 768, 64, 40, 16, 1, 1, 8, 6, 4);
  PHASE(2304, 768, 64, 40, 32, 2, 1, 4, 4, 4);
  PHASE(2304, 768, 64, 40, 64, 2, 1, 4, 3, 4);
  PHASE(2304, 768, 64, 40, 64, 4, 1, 2, 4, 4);
  PHASE(2304, 768, 64, 40, 32, 1, 1, 12, 3, 4);
  PHASE(2304, 768, 64, 40, 32, 2, 1, 6, 3, 4);
  PHASE(2304, 768, 128, 24, 32, 1, 1, 8, 3, 4);
  PHASE(3072, 768, 64, 48, 32, 1, 1, 8, 3, 4);
  PHASE(3072, 768, 64, 48, 32, 2, 1, 4, 4, 4);
  PHASE(3072, 768, 64, 48, 32, 1, 2, 4, 4, 4);
  PHASE(3072, 768, 128, 24, 32, 2, 1, 4, 4, 4);
  PHASE(768, 768, 32, 24, 32, 1, 1, 8, 4, 4);
  PHASE(768, 768, 32, 24, 32, 1, 1, 8, 6, 4);
  PHASE(768, 768, 32, 24, 64, 1, 1, 8, 3, 4);
  PHASE(768, 768, 32, 24, 32, 1, 1, 16, 2, 4);
  PHASE(768, 768, 16, 48, 32, 1, 1, 8, 4, 4);
  PHASE(768, 768, 64, 16, 32, 1, 1, 8, 4, 4);
  PHASE(768, 3072, 32, 24, 32, 1, 1, 8, 4, 4);
  PHASE(768, 3072, 32, 24, 32, 1, 1, 8, 6, 4);
  PHASE(768, 3072, 32, 24, 64, 1, 1, 8, 3, 4);
  PHASE(768, 3072, 32, 24, 32, 1, 1, 12, 4, 4);
  PHASE(768, 3072, 32, 24, 64, 1, 1, 12, 2, 4);
  PHASE(768, 3072, 32, 24, 64, 2, 1, 4, 4, 4);
  using L = On<f16, 'k', A, 8, false>;
  using R = On<f16, 'k', A, 8, true>;
  bench.whole<Cut<MMA, L, R, float, 768, 64, 40, 32, 1, 1, 8, 4, 4>, Cut<MMA, L, R, float, 768, 32, 24, 32, 1, 1, 8, 6, 4>,
              Cut<MMA, L, R, float, 768, 64, 48, 32, 1, 1, 8, 3, 4>, Cut<MMA, L, R, float, 3072, 32, 24, 32, 1, 1, 8, 6, 4>>(
      "chain of 48, the first experiment's tiles");
  bench.whole<Cut<MMA, L, R, float, 768, 64, 40, 32, 2, 1, 4, 4, 4>, Cut<MMA, L, R, float, 768, 32, 24, 32, 1, 1, 8, 6, 4>,
              Cut<MMA, L, R, float, 768, 64, 48, 32, 2, 1, 4, 4, 4>, Cut<MMA, L, R, float, 3072, 32, 24, 64, 1, 1, 8, 3, 4>>(
      "chain of 48, four slices of two warps");
  return failures != 0;
}
