// Instructions that every supported architecture has. Nothing outside `ptx/` holds assembly.
#pragma once

namespace mt::ptx {

// Bits of a 16-bit float.
__device__ __forceinline__ float f16_to_f32(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
__device__ __forceinline__ unsigned short f32_to_f16(float x) {
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ unsigned short f32_to_bf16(float x) {
  unsigned short y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

// NaN if either side is.
__device__ __forceinline__ float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
__device__ __forceinline__ float min_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// 2^x and 1 / x, to 2 units in the last place; subnormal results are 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Predicated stores to global memory.
__device__ __forceinline__ void store_if(bool predicate, void* p, unsigned x) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.u32 [%1], %2;\n}"
      ::"r"(unsigned(predicate)), "l"(__cvta_generic_to_global(p)), "r"(x));
}
__device__ __forceinline__ void store_if(bool predicate, void* p, uint2 x) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.v2.u32 [%1], {%2, %3};\n}"
      ::"r"(unsigned(predicate)), "l"(__cvta_generic_to_global(p)), "r"(x.x), "r"(x.y));
}
__device__ __forceinline__ void store_if(bool predicate, void* p, uint4 x) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.v4.u32 [%1], {%2, %3, %4, %5};\n}"
      ::"r"(unsigned(predicate)), "l"(__cvta_generic_to_global(p)), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w));
}

// Global memory through the read-only path; volatile, so that a load stays before the barrier that it is written before.
__device__ __forceinline__ unsigned char load_constant_1(const void* p) {
  unsigned y;
  asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(y) : "l"(__cvta_generic_to_global(p)));
  return static_cast<unsigned char>(y);
}
__device__ __forceinline__ unsigned short load_constant_2(const void* p) {
  unsigned short y;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(y) : "l"(__cvta_generic_to_global(p)));
  return y;
}
__device__ __forceinline__ unsigned load_constant_4(const void* p) {
  unsigned y;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(y) : "l"(__cvta_generic_to_global(p)));
  return y;
}
__device__ __forceinline__ uint2 load_constant_8(const void* p) {
  uint2 y;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];"
      : "=r"(y.x), "=r"(y.y)
      : "l"(__cvta_generic_to_global(p)));
  return y;
}
__device__ __forceinline__ uint4 load_constant_16(const void* p) {
  uint4 y;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(y.x), "=r"(y.y), "=r"(y.z), "=r"(y.w)
      : "l"(__cvta_generic_to_global(p)));
  return y;
}
// Not through the read-only cache. Where they stand in the code, loads are issued: a compiler would move plain ones to their first use.
__device__ __forceinline__ uint2 load_now_8(const void* p) {
  uint2 y;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(y.x), "=r"(y.y) : "l"(__cvta_generic_to_global(p)));
  return y;
}
__device__ __forceinline__ uint4 load_now_16(const void* p) {
  uint4 y;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(y.x), "=r"(y.y), "=r"(y.z), "=r"(y.w)
      : "l"(__cvta_generic_to_global(p)));
  return y;
}

// Barriers and what they are made of.
__device__ __forceinline__ void barrier_all() { asm volatile("bar.sync 0;" ::: "memory"); }
template <int THREADS>
__device__ __forceinline__ void barrier_some(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}
// Arrives at a barrier that others wait at, and does not wait.
template <int THREADS>
__device__ __forceinline__ void barrier_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}
__device__ __forceinline__ void add_release(unsigned* p, unsigned x) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}
__device__ __forceinline__ unsigned fetch_add_acq_rel(unsigned* p, unsigned x) {
  unsigned y;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(y) : "l"(p), "r"(x) : "memory");
  return y;
}
__device__ __forceinline__ unsigned load_acquire(const unsigned* p) {
  unsigned y;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(y) : "l"(p) : "memory");
  return y;
}
__device__ __forceinline__ void store_relaxed(unsigned* p, unsigned x) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}
// Words of 64 bits. An access to a word is atomic; one to a vector of two words is two such accesses.
__device__ __forceinline__ void store_word_8(void* p, unsigned long long x) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(__cvta_generic_to_global(p)), "l"(x) : "memory");
}
__device__ __forceinline__ unsigned long long load_word_8(const void* p) {
  unsigned long long x;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(x) : "l"(__cvta_generic_to_global(p)) : "memory");
  return x;
}
__device__ __forceinline__ void load_words_16(const void* p, unsigned long long& x, unsigned long long& y) {
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
      : "=l"(x), "=l"(y)
      : "l"(__cvta_generic_to_global(p))
      : "memory");
}
__device__ __forceinline__ unsigned long long nanoseconds() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
__device__ __forceinline__ unsigned long long cycles() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %clock64;" : "=l"(t));
  return t;
}

// Ends the launch, after `x` has reached the host's memory at `p` (nothing if null).
__device__ __forceinline__ void trap(unsigned* p, unsigned x) {
  if (p != nullptr) asm volatile("st.relaxed.sys.global.u32 [%0], %1;\nfence.sc.sys;" ::"l"(p), "r"(x) : "memory");
  asm volatile("trap;");
}

// Asks for what lies there to be brought into the last-level cache.
__device__ __forceinline__ void request(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}

// Waits for a moment.
__device__ __forceinline__ void pause() { asm volatile("nanosleep.u32 1;"); }

// The block's dynamic shared memory.
__device__ __forceinline__ char* shared_memory() {
  extern __shared__ __align__(1024) char monotile_shared[];
  return monotile_shared;
}

// `x`, whose origin the compiler cannot see: what is computed from it is computed no earlier than here.
__device__ __forceinline__ unsigned opaque(unsigned x) {
  asm("" : "+r"(x));
  return x;
}

// `x`, as if recomputed here: what is computed from it stays where it is written. Otherwise the compiler hoists what depends on the
// thread's index alone out of the loop over layers, and keeps all of it in registers for the whole launch.
__device__ __forceinline__ unsigned recompute(unsigned x) {
  asm volatile("" : "+r"(x));
  return x;
}

// The same for a pointer: what is added to it stays a constant of the instruction.
template <class T>
__device__ __forceinline__ T* recompute(T* p) {
  asm volatile("" : "+l"(p));
  return p;
}

// `x`, which is equal in all lanes of the warp, in a form that tells the compiler so.
__device__ __forceinline__ unsigned uniform(unsigned x) { return __shfl_sync(0xffffffff, x, 0); }

// 0, which may differ between lanes for all that ptxas knows: x * (x + 1) is even.
__device__ __forceinline__ unsigned zero_of_lane() {
  unsigned zero;
  asm("{\n\t.reg .b32 x;\n\tmov.u32 x, %%tid.x;\n\tmad.lo.u32 x, x, x, x;\n\tand.b32 %0, x, 1;\n\t}" : "=r"(zero));
  return zero;
}
// An argument of a function that is called, in registers of each lane. ptxas would pass it in uniform ones, which are a warp's: in a callee
// that has few of them it gives one to both sides of a branch, and the lanes that take the second side find what the first left there
// (releases 13.0 to 13.5, sm_90a: half of a pointer was gone).
template <class T>
__device__ __forceinline__ T* in_lanes(T* p) {
  return (T*)((unsigned long long)p + zero_of_lane());
}
__device__ __forceinline__ unsigned in_lanes(unsigned x) { return x + zero_of_lane(); }
__device__ __forceinline__ int in_lanes(int x) { return x + int(zero_of_lane()); }
__device__ __forceinline__ long long in_lanes(long long x) { return x + zero_of_lane(); }
__device__ __forceinline__ long in_lanes(long x) { return x + zero_of_lane(); }

// Tells the compiler that `p` points into global memory, which it cannot see through a call.
__device__ __forceinline__ void assume_global(const volatile void* p) {
  __builtin_assume(__isGlobal(const_cast<const void*>(p)));
}

}  // namespace mt::ptx
