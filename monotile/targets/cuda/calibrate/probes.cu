// What the figures of a GPU are measured with, one kernel each. All blocks are resident: one a multiprocessor.
#include "cuda/device/barrier.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/ptx/sm_80.cuh"
#include "cuda/device/types.cuh"

using namespace mt;

constexpr int AT_ONCE = 8;  // vectors that a thread has on their way

// Reads `vectors` vectors of 16 bytes `rounds` times, past L1; another block has each of them in the next round.
extern "C" __global__ void __launch_bounds__(1024, 1) probe_read(const uint4* from, u64 vectors, u32 rounds, u32* out) {
  u32 sum = 0;
  for (u32 round = 0; round < rounds; ++round) {
    u64 block = (blockIdx.x + round) % gridDim.x, step = u64(gridDim.x) * blockDim.x;
    u64 i = block * blockDim.x + threadIdx.x;
    for (; i + (AT_ONCE - 1) * step < vectors; i += AT_ONCE * step) {
      uint4 x[AT_ONCE];
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k) x[k] = __ldcg(from + i + k * step);
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k) sum ^= x[k].x ^ x[k].y ^ x[k].z ^ x[k].w;
    }
  }
  if (sum == 0x5eed5eed) *out = sum;
}

extern "C" __global__ void __launch_bounds__(1024, 1) probe_copy(const uint4* from, u64 vectors, uint4* to) {
  u64 step = u64(gridDim.x) * blockDim.x;
  u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + (AT_ONCE - 1) * step < vectors; i += AT_ONCE * step) {
    uint4 x[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) x[k] = __ldcg(from + i + k * step);
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) to[i + k * step] = x[k];
  }
}

// Every worker takes `bytes` into shared memory by asynchronous copies in each round, and waits for them. Two workers each read the same,
// as they do in products.
extern "C" __global__ void __launch_bounds__(256, 1) probe_intake(const char* from, u64 span, u32 bytes, u32 rounds, u32* out) {
  char* shared = ptx::shared_memory();
  u32 to = ptx::shared_address(shared);
  for (u32 round = 0; round < rounds; ++round) {
    u64 begin = (u64(round) * gridDim.x + blockIdx.x / 2) * bytes % (span - bytes) / 128 * 128;
    for (u32 i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16) ptx::copy_async<16>(to + i, from + begin + i);
    ptx::copy_async_commit();
    ptx::copy_async_wait<0>();
    block_barrier();
  }
  if (shared[0] == 99 && shared[5] == 77) *out = 1;
}

extern "C" __global__ void __launch_bounds__(256, 1) probe_barrier(u32* sync, u32 rounds) {
  GridBarrier grid(sync);
  for (u32 round = 0; round < rounds; ++round) grid.wait();
  grid.leave();
}

// A word that goes from worker to worker, `rounds` times round. words: one of 8 bytes for each worker, 128 bytes apart, zeros.
extern "C" __global__ void __launch_bounds__(32, 1) probe_flag(char* words, u32 rounds) {
  if (threadIdx.x != 0) return;
  u32 before = (blockIdx.x + gridDim.x - 1) % gridDim.x;
  for (u32 round = 1; round <= rounds; ++round) {
    u32 wanted = blockIdx.x == 0 ? round - 1 : round;
    while (ptx::load_acquire((const u32*)(words + before * 128)) < wanted) {
    }
    ptx::add_release((u32*)(words + blockIdx.x * 128), 1);
  }
}

// Loads of one thread, each of which says where the next one is.
extern "C" __global__ void probe_chase(const u32* next, u32 steps, u32* out) {
  u32 at = 0;
  for (u32 i = 0; i < steps; ++i) at = __ldcg(next + at);
  *out = at;
}

extern "C" __global__ void probe_empty(u32* out) {
  if (out == nullptr) __nanosleep(0);
}
