// Instructions that came with sm_80: asynchronous copies, matrix loads, matrix products.
#pragma once
#include "cuda/device/float8.cuh"

namespace mt::ptx {

__device__ __forceinline__ u32 shared_address(const void* p) {
  return u32(__cvta_generic_to_shared(p));
}

// Copies `BYTES` (4, 8 or 16) from global to shared memory. A generic address of global memory is its global address. Copies of 16
// bytes bypass L1; narrower ones exist only through it.
template <int BYTES>
__device__ __forceinline__ void copy_async(u32 to, const void* from) {
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    static_assert(BYTES == 4 || BYTES == 8, "an asynchronous copy moves 4, 8 or 16 bytes");
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES)
                 : "memory");
  }
}

// The cache policy evict-first: what is read under it leaves the last-level cache before anything else.
__device__ __forceinline__ u64 evict_first_policy() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// The minimum changes no address of shared memory. Without it ptxas may add a uniform register to the address, and then leaves the policy's register
// undefined, which is an illegal instruction (13.0 to 13.3: github.com/IST-DASLab/marlin/issues/44).
__device__ __forceinline__ void copy_async_with_policy(u32 to, const void* from, u64 policy) {
  asm("min.u32 %0, %0, 0xfffff;" : "+r"(to));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy) : "memory");
}

// The same of the first `size` bytes; zeros are written for the others, which are not read.
template <int BYTES>
__device__ __forceinline__ void copy_async_part(u32 to, const void* from, u32 size) {
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(size)
                 : "memory");
  } else {
    static_assert(BYTES == 4 || BYTES == 8, "an asynchronous copy moves 4, 8 or 16 bytes");
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from),
                 "n"(BYTES), "r"(size)
                 : "memory");
  }
}

// The same. If not `valid`, zeros are written and nothing is read.
template <int BYTES>
__device__ __forceinline__ void copy_async_or_zero(u32 to, const void* from, bool valid) {
  copy_async_part<BYTES>(to, from, valid ? BYTES : 0);
}

__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `PENDING` of this thread's newest groups are under way.
template <int PENDING>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Four (two) 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrix_x4(u32 (&r)[4], u32 address) {
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrix_x2(u32 (&r)[2], u32 address) {
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address));
}

// c += a * b, 16x8 += 16x16 * 16x8.
template <class T>
__device__ __forceinline__ void mma_16816(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  static_assert(is_float16<T>, "mma.m16n8k16 multiplies float16 or bfloat16");
  if constexpr (same<T, f16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// A float rounded to TF32, whose last 13 bits are zero.
__device__ __forceinline__ u32 to_tf32(u32 x) {
  u32 out;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(__uint_as_float(x)));
  return out;
}

// c += a * b, 16x8, over 32 bytes of each row of `a` along k: 16 values of 16 bits, 32 of 8, or 8 of 32. Integers are summed as integers;
// of a float the last 13 bits are not looked at (TF32).
template <class A, class B, class Sum>
__device__ __forceinline__ void mma(Sum (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#define MT_MMA(SHAPE, R)                                                                              \
  asm("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"    \
      : "+" R(c[0]), "+" R(c[1]), "+" R(c[2]), "+" R(c[3])                                            \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (same<A, float>)
    MT_MMA("m16n8k8.row.col.f32.tf32.tf32.f32", "f");
  else if constexpr (same<A, i8> && same<B, i8>)
    MT_MMA("m16n8k32.row.col.s32.s8.s8.s32", "r");
  else if constexpr (same<A, i8> && same<B, u8>)
    MT_MMA("m16n8k32.row.col.s32.s8.u8.s32", "r");
  else if constexpr (same<A, u8> && same<B, i8>)
    MT_MMA("m16n8k32.row.col.s32.u8.s8.s32", "r");
  else if constexpr (same<A, u8> && same<B, u8>)
    MT_MMA("m16n8k32.row.col.s32.u8.u8.s32", "r");
  else if constexpr (same<A, f8e4m3>)  // from sm_89 on
    MT_MMA("m16n8k32.row.col.f32.e4m3.e4m3.f32", "f");
  else
    mma_16816<A>(c, a, b);
#undef MT_MMA
}

}  // namespace mt::ptx
