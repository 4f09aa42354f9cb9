// Waiting: of a group of warps, of a block, of the whole grid.
//
// Why plain loads after `GridBarrier::wait` see what any block wrote before it. A block's writes happen before its
// `bar.sync`, that before thread 0's `red.release.gpu`; the release is observed by the `ld.acquire.gpu` of every block's
// thread 0 (reads of a chain of atomics extend the release), that happens before the second `bar.sync`, and so before
// every thread's loads: causality order of the PTX memory model is transitive over these scopes. In hardware stores write
// through to L2 and an acquire at gpu scope drops the multiprocessor's L1, so no load, `ld.ca` and `cp.async.ca`
// included, can hit a stale line. Only `ld.global.nc` is outside the model: it is used for inputs and weights alone.
#pragma once
#include "cuda/device/check.cuh"
#include "cuda/device/types.cuh"

namespace mt {

// MT_COMPUTING: how many threads of a block compute, where another warp supplies their weights.
#ifdef MT_COMPUTING
__device__ __forceinline__ void block_barrier() { ptx::barrier_some<MT_COMPUTING>(0); }
#else
__device__ __forceinline__ void block_barrier() { ptx::barrier_all(); }
#endif

// `WARPS` warps that share barrier `id` (1 to 15) wait for each other.
template <int WARPS>
__device__ __forceinline__ void warps_barrier(int id) {
  if constexpr (WARPS == 1)
    __syncwarp();
  else
    ptx::barrier_some<WARPS * 32>(id);
}

// Fails the kernel when a wait takes more than 20 seconds, so that it does not hang the device. A waiting loop calls it now and
// then. begin: the time at which the wait began, 0 at the first call; returned. It is not a reference, as every wait would store it
// to memory first. Where functions are compiled separately it is inlined, because a call serialises the wgmma of the caller
// (C7509).
#ifdef MT_APART
__device__ __forceinline__
#else
__device__ __noinline__
#endif
u64 check_timeout(u64 begin) {
  constexpr u64 LIMIT = 20ull * 1000 * 1000 * 1000;
  u64 now = ptx::nanoseconds();
  if (begin == 0) begin = now;
  if (now - begin > LIMIT) fail(HANDOFF_TIMEOUT);
  return begin;
}

// The barrier of all blocks of a cooperative launch: a counter that rises by the number of blocks at each wait. sync[0] counts the
// blocks that arrived, sync[1] those that left. Both are zero before and after the launch. sync[2] is the last tag of messages: see
// message.cuh.
class GridBarrier {
 public:
  __device__ __forceinline__ explicit GridBarrier(u32* sync) : sync_(sync), target_(0) {}

  __device__ __forceinline__ void wait() {
    arrive();
    await();
  }
  // The two halves of a wait (a split barrier). Code between them must not read what other blocks write before the barrier.
  __device__ __forceinline__ void arrive() {
    target_ += gridDim.x;
    block_barrier();
    if (threadIdx.x == 0) ptx::add_release(sync_, 1);
  }
  __device__ __forceinline__ void await() const {
    if (threadIdx.x == 0) {
      u64 begin = 0;
      for (u32 tries = 1; ptx::load_acquire(sync_) < target_; ++tries)
        if ((tries & 0xfffff) == 0) begin = check_timeout(begin);
    }
    block_barrier();
  }

  // As an argument of a function that is called.
  __device__ __forceinline__ GridBarrier in_lanes() const {
    GridBarrier same = *this;
    same.sync_ = ptx::in_lanes(sync_), same.target_ = ptx::in_lanes(target_);
    return same;
  }

  // Every block calls it once, after its last wait.
  __device__ __forceinline__ void leave() {
    if (threadIdx.x == 0 && last_to_leave()) reset();
  }
  __device__ __forceinline__ void leave(u32 tag) {
    if (threadIdx.x == 0 && last_to_leave()) {
      ptx::store_relaxed(sync_ + 2, tag);
      reset();
    }
  }

 private:
  __device__ __forceinline__ bool last_to_leave() {
    return ptx::fetch_add_acq_rel(sync_ + 1, 1) == gridDim.x - 1;
  }
  // No block reads the counters any more.
  __device__ __forceinline__ void reset() {
    ptx::store_relaxed(sync_, 0);
    ptx::store_relaxed(sync_ + 1, 0);
  }

  u32* sync_;
  u32 target_;
};

namespace ptx {
__device__ __forceinline__ GridBarrier in_lanes(const GridBarrier& grid) { return grid.in_lanes(); }
}  // namespace ptx

}  // namespace mt
