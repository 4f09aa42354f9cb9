// The 16-bit floats in memory (uint16_t) and their rounding. Written with integer operations and selects
// alone, because GCC vectorises those and not its own conversions of _Float16.
#pragma once
#include "cpu/device/integer.h"

MT_INLINE uint32_t mt_bits(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  return u;
}

MT_INLINE float mt_float(uint32_t u) {
  float x;
  __builtin_memcpy(&x, &u, 4);
  return x;
}

MT_INLINE float mt_from_bf16(uint16_t h) { return mt_float((uint32_t)h << 16); }

MT_INLINE uint16_t mt_to_bf16(float x) {
  uint32_t u = mt_bits(x), high = u >> 16;
  uint32_t even = (u + 0x7fffu + (high & 1u)) >> 16;
  return (uint16_t)(x != x ? high | 0x40u : even);
}

MT_INLINE float mt_from_f16(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = (uint32_t)(h & 0x7fffu) << 13;
  // Subnormals: with the exponent of 2^-14, less 2^-14. No float on the way is subnormal, which may count as zero (`mt_flush`).
  uint32_t small = mt_bits(mt_float(rest + 0x38800000u) - 0x1p-14f);
  uint32_t u = rest < 0x00800000u ? small : rest + 0x38000000u;
  u = rest >= 0x0f800000u ? u | 0x7f800000u : u;  // infinity and NaN
  return mt_float(u | sign);
}

MT_INLINE uint16_t mt_to_f16(float x) {
  uint32_t u = mt_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  // Normal results: round to even at bit 13, with the exponent's bias moved from 127 to 15.
  uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
  // Subnormal results: adding 0.5 leaves the value in units of 2^-24, rounded by the addition itself.
  uint32_t small = mt_bits(mt_float(a) + 0.5f) - 0x3f000000u;
  uint32_t h = a < 0x38800000u ? small : normal;
  h = a >= 0x477ff000u ? 0x7c00u : h;
  h = a > 0x7f800000u ? 0x7e00u : h;
  return (uint16_t)(h | sign);
}

MT_INLINE float mt_round_f16(float x) { return mt_from_f16(mt_to_f16(x)); }
MT_INLINE float mt_round_bf16(float x) { return mt_from_bf16(mt_to_bf16(x)); }
MT_INLINE float mt_load_f16(const uint16_t* p) { return mt_from_f16(*p); }
MT_INLINE float mt_load_bf16(const uint16_t* p) { return mt_from_bf16(*p); }
MT_INLINE void mt_store_f16(uint16_t* p, float x) { *p = mt_to_f16(x); }
MT_INLINE void mt_store_bf16(uint16_t* p, float x) { *p = mt_to_bf16(x); }
MT_INLINE void mt_keep_bf16(uint16_t* p, float x) { *p = (uint16_t)(mt_bits(x) >> 16); }  // of one that is a bf16

// A double rounded to odd: rounding the float again, to 16 bits, then gives what rounding once would.
MT_INLINE float mt_odd_f32(double x) {
  float f = (float)x;
  double back = (double)f;
  uint32_t u = mt_bits(f);
  if (back == x || x != x || (u & 1u)) return f;
  bool away = x > 0 ? back > x : back < x;
  return mt_float(away ? u - 1 : (u & 0x7fffffffu) >= 0x7f800000u ? u : u + 1);
}
