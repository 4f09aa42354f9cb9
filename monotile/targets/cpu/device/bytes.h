// Vectors of bytes, and sums of their products in int32.
#pragma once
#include "cpu/device/vector.h"

#define MT_TYPE_i8 int8_t
#define MT_TYPE_u8 uint8_t
#define MT_SIGNED_i8 1
#define MT_SIGNED_u8 0
#define MT_LANES_i32 (MT_VECTOR_BYTES / 4)

typedef int8_t mt_bytes __attribute__((vector_size(MT_VECTOR_BYTES)));
typedef int32_t mt_i32 __attribute__((vector_size(MT_VECTOR_BYTES)));
MT_TOTAL(i32, int32_t)

MT_INLINE mt_bytes mt_get_bytes(const void* p) {
  mt_bytes v;
  memcpy(&v, p, sizeof v);
  return v;
}
// The first n bytes, zeros after them.
MT_INLINE mt_bytes mt_get_some_bytes(const void* p, idx n) {
  mt_bytes v = {0};
  memcpy(&v, p, (size_t)n);
  return v;
}

// Each sum plus the products of four neighbours: unsigned bytes of `a`, signed ones of `b`.
MT_INLINE mt_i32 mt_dot_bytes(mt_i32 sum, mt_bytes a, mt_bytes b) {
#if defined(__AVX512VNNI__) && MT_VECTOR_BYTES == 64
  return (mt_i32)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX512VNNI__) && defined(__AVX512VL__) && MT_VECTOR_BYTES == 32
  return (mt_i32)_mm256_dpbusd_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#elif defined(__AVXVNNI__) && MT_VECTOR_BYTES == 32
  return (mt_i32)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#else
  for (int i = 0; i < MT_VECTOR_BYTES; ++i) sum[i / 4] += (uint8_t)a[i] * b[i];
  return sum;
#endif
}
