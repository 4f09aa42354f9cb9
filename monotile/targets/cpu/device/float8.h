// The 8-bit floats in memory (uint8_t) and their rounding, like those of 16 bits. NaN is encoded with all bits set but the sign.
#pragma once
#include "cpu/device/float16.h"

MT_INLINE float mt_from_f8e4m3(uint8_t h) {
  uint32_t sign = (uint32_t)(h & 0x80u) << 24, rest = (uint32_t)(h & 0x7fu) << 20;
  // As `mt_from_f16`: subnormals with the exponent of 2^-6, less 2^-6.
  uint32_t small = mt_bits(mt_float(rest + 0x3c800000u) - 0x1p-6f);
  uint32_t u = rest < 0x00800000u ? small : rest + 0x3c000000u;
  u = rest == 0x07f00000u ? 0x7fc00000u : u;
  return mt_float(u | sign);
}

// A half of which the lower byte is zero.
MT_INLINE float mt_from_f8e5m2(uint8_t h) { return mt_from_f16((uint16_t)((uint32_t)h << 8)); }

// A float's exponent; 2^-127 is subnormal.
MT_INLINE float mt_from_f8e8m0(uint8_t h) {
  uint32_t rest = h == 0 || h == 255 ? 0x400000u : 0u;
  return mt_float((uint32_t)h << 23 | rest);
}

// Normal results: round to even behind the mantissa, with the exponent's bias moved. Subnormal results: adding 2^14 (2^7) leaves the
// value in units of 2^-9 (2^-16), rounded by the addition itself.
MT_INLINE uint8_t mt_to_f8e4m3(float x) {
  uint32_t u = mt_bits(x), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
  uint32_t normal = (a - 0x3c000000u + 0x7ffffu + ((a >> 20) & 1u)) >> 20;
  uint32_t small = mt_bits(mt_float(a) + 0x1p14f) - 0x46800000u;
  uint32_t h = a < 0x3c800000u ? small : normal;
  h = a > 0x43e80000u ? 0x7fu : h;  // above 464, which is halfway to the first number that there is not
  return (uint8_t)(h | sign);
}

MT_INLINE uint8_t mt_to_f8e5m2(float x) {
  uint32_t u = mt_bits(x), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
  uint32_t normal = (a - 0x38000000u + 0xfffffu + ((a >> 21) & 1u)) >> 21;
  uint32_t small = mt_bits(mt_float(a) + 0x1p7f) - 0x43000000u;
  uint32_t h = a < 0x38800000u ? small : normal;
  h = a >= 0x47700000u ? 0x7cu : h;
  h = a > 0x7f800000u ? 0x7fu : h;
  return (uint8_t)(h | sign);
}

// Halfway is up, but for 2^-127.
MT_INLINE uint8_t mt_to_f8e8m0(float x) {
  uint32_t a = mt_bits(x) & 0x7fffffffu;
  uint32_t h = (a + 0x3fffffu + (a >= 0x800000u)) >> 23;
  return (uint8_t)(h > 255u ? 255u : h);
}

#define MT_FLOAT8(N)                                                                               \
  MT_INLINE float mt_round_##N(float x) { return mt_from_##N(mt_to_##N(x)); }                      \
  MT_INLINE float mt_load_##N(const uint8_t* p) { return mt_from_##N(*p); }                        \
  MT_INLINE void mt_store_##N(uint8_t* p, float x) { *p = mt_to_##N(x); }                         \
  MT_INLINE int8_t mt_bits_##N(float x) { return (int8_t)mt_to_##N(x); }                           \
  MT_INLINE float mt_##N##_of_bits(int8_t x) { return mt_from_##N((uint8_t)x); }
MT_FLOAT8(f8e4m3)
MT_FLOAT8(f8e5m2)
MT_FLOAT8(f8e8m0)
