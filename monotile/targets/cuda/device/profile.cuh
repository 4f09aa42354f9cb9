// Time stamps of a worker: the layout is in plan/records.py.
//
// Events are stamped with clock64, which counts the cycles of one multiprocessor. %globaltimer is common to all, but advances in
// steps of 32 ns to 1 us, depending on the driver: too coarse for a stage of a few microseconds. The moment of a step is as precise
// as a cycle, though. So a block reads both clocks at such a step when it begins and when it ends, and these two pairs convert its
// cycles to global time. A block stays on its multiprocessor. A change of the clock rate within a call appears as a slight stretch.
#pragma once
#include "cuda/device/barrier.cuh"

// The state of a block's profile, in dynamic shared memory, behind what stages use. Called functions get a pointer to it; each access to
// a local variable would go to L2, as every hand-off invalidates the L1. It must not be static: where functions are compiled apart only
// the kernel's part knows of it, and callees take the dynamic memory to begin where the static does.
struct mt_profile {
  unsigned long long* memory;  // of this worker: header, then records
  unsigned capacity, count;
  unsigned long long what, iteration, start;
};
static_assert(sizeof(mt_profile) <= 64, "`ON_CHIP` of plan/records.py has room for it");
#define MT_PROFILE(name, place) mt_profile* const name = reinterpret_cast<mt_profile*>(mt::ptx::shared_memory() + (place + 15) / 16 * 16)

// Stores the cycle count at the next step of the global timer, and the timer's value then, to `memory`.
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

// Records the end of what began last, once all threads of the block are there.
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
