// Time stamps of a worker: the layout is in schedule/records.py.
//
// Events are stamped by clock64, a counter of the multiprocessor's cycles. %globaltimer, which all share, advances in steps of
// 32 ns to 1 us as the driver pleases, too coarse for a stage of a few microseconds; but the moment at which it steps is as sharp as a
// cycle. So a block reads its clock at such a step when it begins and when it ends, and the two pairs place its clock in
// the time of all. A block stays on its multiprocessor, and a change of the clock's rate within a call shows as a slight stretch.
#pragma once
#include "cuda/device/barrier.cuh"

// Of a block, in its on-chip memory: a pointer is passed to functions that are called, so of a variable each access would be one to L2, as
// every hand-off empties the L1.
struct mt_profile {
  unsigned long long* memory;  // of this worker: header, then records
  unsigned capacity, count;
  unsigned long long what, iteration, start;
};
static_assert(sizeof(mt_profile) <= 64, "profile_memory has room for it");
#define MT_PROFILE(name) mt_profile* const name = static_cast<mt_profile*>(mt::ptx::profile_memory())

// The clock at the next step of the timer, and the timer's value then, to `memory`.
static __device__ __forceinline__ void mt_profile_step(unsigned long long* memory) {
  unsigned long long before = mt::ptx::nanoseconds(), now = before;
  while (now == before) now = mt::ptx::nanoseconds();
  memory[0] = mt::ptx::cycles();
  memory[1] = now;
}

static __device__ __forceinline__ void mt_profile_open(mt_profile* p, void* memory, unsigned capacity,
                                                       unsigned worker) {
  if (threadIdx.x != 0) return;
  p->memory = static_cast<unsigned long long*>(memory) + worker * (5 + 4ull * capacity);
  p->capacity = capacity;
  p->count = 0;
  mt_profile_step(p->memory + 1);
}

static __device__ __forceinline__ void mt_profile_stage(mt_profile* p, unsigned number, unsigned long long iteration) {
  if (threadIdx.x != 0) return;
  p->what = number << 8;
  p->iteration = iteration;
}

static __device__ __forceinline__ void mt_profile_begin(mt_profile* p) {
  if (threadIdx.x == 0) p->start = mt::ptx::cycles();
}

// What began last has ended, for all threads of the block.
static __device__ __forceinline__ void mt_profile_end(mt_profile* p, unsigned, unsigned kind, unsigned task) {
  mt::block_barrier();
  if (threadIdx.x != 0) return;
  const unsigned long long now = mt::ptx::cycles();
  if (p->count < p->capacity) {
    unsigned long long* record = p->memory + 5 + 4ull * p->count;
    record[0] = p->what | kind | static_cast<unsigned long long>(task) << 32;
    record[1] = p->iteration;
    record[2] = p->start;
    record[3] = now;
  }
  ++p->count;
}

static __device__ __forceinline__ void mt_profile_close(mt_profile* p) {
  if (threadIdx.x != 0) return;
  mt_profile_step(p->memory + 3);
  p->memory[0] = p->count;
}
