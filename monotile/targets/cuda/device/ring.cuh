// The ring on chip through which a warp of its own, the supplier, brings weights to the warps that compute.
//
// The supplier goes through the same loops and stages as they do, ahead of them, and waits for no hand-off: only for a free slot, and
// for what is under way to become less, as hand-offs queue behind it (docs/measurements.md, "Streamed weights"). It is told when what
// it has to look up is there.
#pragma once
#include "cuda/device/check.cuh"
#include "cuda/device/ptx/sm_80.cuh"
#include "cuda/device/ptx/sm_90a.cuh"
#include "cuda/device/types.cuh"

namespace mt {

// What lies in on-chip memory, as `Ring` in plan/nodes.py says: of each slot a barrier on which its bytes arrive and one on which the
// warps say that they have read it; two more, and a number, by which the warps tell the supplier which way the Plan goes; a word for
// each warp; the slots.
template <int SLOTS, int SLOT_BYTES, int WARPS>
struct RingMemory {
  static constexpr int HEAD = (16 * SLOTS + 32 + 4 * WARPS + 127) / 128 * 128;
  char* memory;

  __device__ __forceinline__ u32 full(u32 slot) const { return ptx::shared_address(memory) + 8 * slot; }
  __device__ __forceinline__ u32 free(u32 slot) const { return full(SLOTS + slot); }
  __device__ __forceinline__ u32 told() const { return full(2 * SLOTS); }
  __device__ __forceinline__ u32 heard() const { return full(2 * SLOTS + 1); }
  // What was told last, and how often anything was.
  __device__ __forceinline__ u32* decision() const { return reinterpret_cast<u32*>(memory + 16 * SLOTS + 16); }
  __device__ __forceinline__ u32* taken(u32 warp) const { return decision() + 4 + warp; }
  __device__ __forceinline__ char* slot(u32 number) const { return memory + HEAD + number * SLOT_BYTES; }

  // By all threads of the block, before anything else.
  __device__ __forceinline__ void start() const {
    if (threadIdx.x == 0) {
      for (u32 s = 0; s < SLOTS; ++s) ptx::arrival_start(full(s), 1), ptx::arrival_start(free(s), WARPS);
      ptx::arrival_start(told(), 1), ptx::arrival_start(heard(), 1);
      decision()[1] = 0;
      for (u32 w = 0; w < WARPS; ++w) *taken(w) = 0;
      ptx::arrival_fence();
    }
    ptx::barrier_all();
  }

  // By all threads that compute: which way they go.
  __device__ __forceinline__ void tell(int way) const {
    if (threadIdx.x != 0) return;
    u32* const said = decision();
    if (said[1] != 0) ptx::arrival_wait(heard(), (said[1] - 1) & 1);
    said[0] = way, ++said[1];
    ptx::arrive(told(), 1);
  }
};

// The ring as a warp that computes sees it. taken: slots of the stages before.
template <int SLOTS, int SLOT_BYTES, int WARPS>
struct Ring : RingMemory<SLOTS, SLOT_BYTES, WARPS> {
  u32 first;

  __device__ __forceinline__ explicit Ring(char* memory) : RingMemory<SLOTS, SLOT_BYTES, WARPS>{memory} {
    first = *this->taken(threadIdx.x / 32);
  }
  // Slot `number` of the stage's, once its bytes are there.
  __device__ __forceinline__ const char* await(u32 number) const {
    const u32 n = first + number, s = n % SLOTS;
    ptx::arrival_wait(this->full(s), n / SLOTS & 1);
    return this->slot(s);
  }
  // By each warp of one of TEAMS teams, once it has read the slot.
  template <int TEAMS>
  __device__ __forceinline__ void release(u32 number) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::arrive(this->free((first + number) % SLOTS), TEAMS);
  }
  // Behind the stage's last of `count` slots.
  __device__ __forceinline__ void leave(u32 count) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) *this->taken(threadIdx.x / 32) = first + count;
    __syncwarp();
  }
};

// The ring as the supplier sees it, which lets UNDER_WAY slots arrive at a time.
template <int SLOTS, int SLOT_BYTES, int WARPS, int UNDER_WAY>
struct Supplier : RingMemory<SLOTS, SLOT_BYTES, WARPS> {
  u32 asked = 0, heards = 0;
  u64 policy = ptx::evict_first_policy();

  __device__ __forceinline__ explicit Supplier(char* memory) : RingMemory<SLOTS, SLOT_BYTES, WARPS>{memory} {}

  // Waits until the next slot may be filled.
  __device__ __forceinline__ void await() const {
    if (asked >= SLOTS) ptx::arrival_wait(this->free(asked % SLOTS), (asked / SLOTS - 1) & 1);
    if (UNDER_WAY < SLOTS && asked >= UNDER_WAY) {
      const u32 before = asked - UNDER_WAY;
      ptx::arrival_wait(this->full(before % SLOTS), before / SLOTS & 1);
    }
  }
  // Before it is filled, by any lanes: BYTES at `from` to byte `at` of it.
  template <int BYTES>
  __device__ __forceinline__ void bring(const void* from, u32 at) const {
    ptx::copy_async<BYTES>(ptx::shared_address(this->slot(asked % SLOTS)) + at, from);
  }
  // The same of vector `number` of those that have the `bytes` at `first`; nothing if it has none of them.
  template <int BYTES>
  __device__ __forceinline__ void bring(const void* first, u32 bytes, u32 number, u32 at) const {
    const u64 begin = reinterpret_cast<u64>(first), from = begin / BYTES * BYTES + number * BYTES;
    if (from < begin + bytes) bring<BYTES>(reinterpret_cast<const void*>(from), at);
  }
  // By all lanes: the slot has arrived only when what they brought has.
  __device__ __forceinline__ void brought() const { ptx::copy_async_arrive(this->full(asked % SLOTS)); }
  // Fills it: the first ROWS lanes each ask for `bytes` at their own `from`, which lie `pitch` bytes apart then.
  template <int ROWS>
  __device__ __forceinline__ void ask(const void* from, u32 bytes, u32 pitch) {
    const u32 s = asked++ % SLOTS, lane = threadIdx.x % 32;
    __syncwarp();  // what any lane brought is awaited
    if (lane == 0) ptx::arrival_expect(this->full(s), bytes * ROWS);
    __syncwarp();
    if (lane < ROWS)
      ptx::copy_bulk(ptx::shared_address(this->slot(s)) + lane * pitch, from, bytes, this->full(s), policy);
  }
  // Fills it with neighbouring rows: each of the first COPIES lanes asks for `bytes` at its own `from`, or for none, for byte `at`.
  template <int COPIES>
  __device__ __forceinline__ void ask_blocks(const void* from, u32 bytes, u32 at) {
    const u32 s = asked++ % SLOTS, lane = threadIdx.x % 32;
    const u32 own = lane < COPIES ? bytes : 0;
    u32 all = own;
#pragma unroll
    for (int other = 1; other < COPIES; other *= 2) all += __shfl_xor_sync(~0u, all, other);
    __syncwarp();  // what any lane brought is awaited
    if (lane == 0) ptx::arrival_expect(this->full(s), all);
    __syncwarp();
    if (own > 0) ptx::copy_bulk(ptx::shared_address(this->slot(s)) + at, from, own, this->full(s), policy);
  }
  // Fills it with ROWS rows of PACKS times 16 bytes, which lie `step` bytes apart. Lane i brings pack i % PACKS of row i / PACKS, which
  // is at its own `from`, and of every so manyth row from there on.
  template <int ROWS, int PACKS>
  __device__ __forceinline__ void gather(const void* from, u32 step) {
    constexpr int AT_ONCE = 32 / PACKS;
    const u32 s = asked++ % SLOTS, lane = threadIdx.x % 32;
    const char* source = static_cast<const char*>(from);
    u32 to = ptx::shared_address(this->slot(s)) + 16 * lane;
    if (lane < AT_ONCE * PACKS)
#pragma unroll 8
      for (int row = lane / PACKS; row < ROWS; row += AT_ONCE, to += 16 * AT_ONCE * PACKS, source += u64(step) * AT_ONCE)
        ptx::copy_async_with_policy(to, source, policy);
    ptx::copy_async_arrive(this->full(s));
    __syncwarp();  // what any lane brought is awaited
    if (lane == 0) ptx::arrive(this->full(s), 1);
  }
  // Which way the warps go, once they say so.
  __device__ __forceinline__ int hear() {
    ptx::arrival_wait(this->told(), heards++ & 1);
    const int way = this->decision()[0];
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::arrive(this->heard(), 1);
    return way;
  }
};

}  // namespace mt
