// The 8-bit floats. They are storage alone: arithmetic runs in float. NaN is encoded with all bits set but the sign.
#pragma once
#include "cuda/device/types.cuh"
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#include "cuda/device/ptx/sm_89.cuh"
#define MT_HAS_FLOAT8
#endif

namespace mt {

struct f8e4m3 {
  u8 bits;
};
struct f8e5m2 {
  u8 bits;
};
struct f8e8m0 {
  u8 bits;
};

__device__ __forceinline__ float widen(f8e4m3 x) {
#ifdef MT_HAS_FLOAT8
  return ptx::f16_to_f32(u16(ptx::f8e4m3x2_to_f16x2(x.bits)));
#else
  // As a half, whose exponent has another bias.
  float y = ptx::f16_to_f32(u16((x.bits & 0x80) << 8 | (x.bits & 0x7f) << 7)) * 256.f;
  return (x.bits & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000u | u32(x.bits & 0x80) << 24) : y;
#endif
}
// A half of which the lower byte is zero.
__device__ __forceinline__ float widen(f8e5m2 x) { return ptx::f16_to_f32(u16(x.bits << 8)); }
// A float's exponent; 2^-127 is subnormal.
__device__ __forceinline__ float widen(f8e8m0 x) {
  return __uint_as_float(u32(x.bits) << 23 | (u8(x.bits + 1) < 2 ? 0x400000u : 0u));
}

// Normal results: round to even behind the mantissa, with the exponent's bias moved. Subnormal results: adding 2^14 (2^7) leaves the
// value in units of 2^-9 (2^-16), rounded by the addition itself. The instruction saturates, so it is not used.
__device__ __forceinline__ f8e4m3 to_f8e4m3(float x) {
  const u32 u = __float_as_uint(x), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
  const u32 normal = (a - 0x3c000000u + 0x7ffffu + (a >> 20 & 1u)) >> 20;
  const u32 small = __float_as_uint(__uint_as_float(a) + 0x1p14f) - 0x46800000u;
  const u32 y = a > 0x43e80000u ? 0x7fu : a < 0x3c800000u ? small : normal;  // 464 is halfway to the first number that there is not
  return {u8(y | sign)};
}
__device__ __forceinline__ f8e5m2 to_f8e5m2(float x) {
  const u32 u = __float_as_uint(x), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
  const u32 normal = (a - 0x38000000u + 0xfffffu + (a >> 21 & 1u)) >> 21;
  const u32 small = __float_as_uint(__uint_as_float(a) + 0x1p7f) - 0x43000000u;
  const u32 y = a > 0x7f800000u ? 0x7fu : a >= 0x47700000u ? 0x7cu : a < 0x38800000u ? small : normal;
  return {u8(y | sign)};
}
// Halfway is up, but for 2^-127.
__device__ __forceinline__ f8e8m0 to_f8e8m0(float x) {
  const u32 a = __float_as_uint(x) & 0x7fffffffu, y = (a + 0x3fffffu + (a >= 0x800000u)) >> 23;
  return {u8(y > 255u ? 255u : y)};
}

template <>
struct Convert<f8e4m3, float> {
  static __device__ __forceinline__ f8e4m3 apply(float x) { return to_f8e4m3(x); }
};

}  // namespace mt
