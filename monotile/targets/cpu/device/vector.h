// Vectors of the compute types, loads that convert 16-bit floats, and horizontal sums.
#pragma once
#include <string.h>

#include "cpu/device/math.h"
#if defined(__F16C__)
#include <immintrin.h>
#endif

#ifndef MT_VECTOR_BYTES
#define MT_VECTOR_BYTES 32
#endif
#define MT_JOIN_(a, b) a##b
#define MT_JOIN(a, b) MT_JOIN_(a, b)
#define MT_LANES_f32 (MT_VECTOR_BYTES / 4)
#define MT_LANES_f64 (MT_VECTOR_BYTES / 8)

// Storage types in C.
#define MT_TYPE_f32 float
#define MT_TYPE_f64 double
#define MT_TYPE_f16 uint16_t
#define MT_TYPE_bf16 uint16_t

typedef float mt_f32 __attribute__((vector_size(MT_VECTOR_BYTES)));
typedef double mt_f64 __attribute__((vector_size(MT_VECTOR_BYTES)));
typedef uint32_t mt_u32 __attribute__((vector_size(MT_VECTOR_BYTES)));
typedef uint64_t mt_u64 __attribute__((vector_size(MT_VECTOR_BYTES)));
typedef uint16_t mt_u16 __attribute__((vector_size(MT_VECTOR_BYTES / 2)));

// A processor takes a hundred times as long for a product with a subnormal factor, such as the exponential of a masked score of -100. From
// mt_flush() to mt_unflush(its value) these count as zero, and sums below them are zero.
#if defined(__SSE__)
MT_INLINE unsigned mt_flush(void) {
  const unsigned mode = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(mode | 0x8040);
  __asm__ volatile("" ::: "memory");
  return mode;
}
MT_INLINE void mt_unflush(unsigned mode) {
  __asm__ volatile("" ::: "memory");
  __builtin_ia32_ldmxcsr(mode);
}
#else
MT_INLINE unsigned mt_flush(void) { return 0; }
MT_INLINE void mt_unflush(unsigned mode) { (void)mode; }
#endif

// mt_get_S(p): as many elements of storage type S at p as a vector of their compute type holds.
// The compute type of the storage types f32, f16 and bf16 is f32.
MT_INLINE mt_f32 mt_get_f32(const float* p) {
  mt_f32 v;
  memcpy(&v, p, sizeof v);
  return v;
}

MT_INLINE mt_f64 mt_get_f64(const double* p) {
  mt_f64 v;
  memcpy(&v, p, sizeof v);
  return v;
}

MT_INLINE mt_f32 mt_get_bf16(const uint16_t* p) {
  mt_u16 h;
  memcpy(&h, p, sizeof h);
  return (mt_f32)(__builtin_convertvector(h, mt_u32) << 16);
}

MT_INLINE mt_f32 mt_get_f16(const uint16_t* p) {
#if defined(__AVX512F__) && MT_VECTOR_BYTES == 64
  return (mt_f32)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__F16C__) && MT_VECTOR_BYTES == 32
  return (mt_f32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
  mt_f32 v;
  for (int i = 0; i < MT_LANES_f32; ++i) v[i] = mt_from_f16(p[i]);
  return v;
#endif
}

// mt_get_some_S(p, n): the first n elements, zeros after them; n < lanes.
#define MT_GET_SOME(S, T, V, LANES)                                                                \
  MT_INLINE V mt_get_some_##S(const T* p, idx n) {                                                 \
    T part[LANES] = {0};                                                                           \
    for (idx i = 0; i < n; ++i) part[i] = p[i];                                                    \
    return mt_get_##S(part);                                                                       \
  }
MT_GET_SOME(f32, float, mt_f32, MT_LANES_f32)
MT_GET_SOME(f64, double, mt_f64, MT_LANES_f64)
MT_GET_SOME(f16, uint16_t, mt_f32, MT_LANES_f32)
MT_GET_SOME(bf16, uint16_t, mt_f32, MT_LANES_f32)

MT_INLINE void mt_put_f32(float* p, mt_f32 v) { memcpy(p, &v, sizeof v); }
MT_INLINE void mt_put_f64(double* p, mt_f64 v) { memcpy(p, &v, sizeof v); }

#define MT_TOTAL(C, T)                                                                             \
  MT_INLINE T mt_total_##C(mt_##C v) {                                                             \
    T part[MT_LANES_##C];                                                                          \
    memcpy(part, &v, sizeof v);                                                                    \
    for (int half = MT_LANES_##C / 2; half; half /= 2)                                             \
      for (int i = 0; i < half; ++i) part[i] += part[i + half];                                    \
    return part[0];                                                                                \
  }
#if defined(__AVX512F__) && MT_VECTOR_BYTES == 64
MT_INLINE float mt_total_f32(mt_f32 v) { return _mm512_reduce_add_ps((__m512)v); }
MT_INLINE double mt_total_f64(mt_f64 v) { return _mm512_reduce_add_pd((__m512d)v); }
#else
MT_TOTAL(f32, float)
MT_TOTAL(f64, double)
#endif

#if defined(__AVX512BF16__) && MT_VECTOR_BYTES == 64
// The first n of 32 bfloat16; zeros after them.
MT_INLINE __m512bh mt_get_pairs(const uint16_t* p, idx n) {
  return (__m512bh)(n < 32 ? _mm512_maskz_loadu_epi16((1u << n) - 1u, p) : _mm512_loadu_si512(p));
}
// Each sum plus the products of two neighbours, of the first n. The instruction takes denormal numbers for zero.
MT_INLINE mt_f32 mt_add_pairs(mt_f32 sum, const uint16_t* a, const uint16_t* b, idx n) {
  return (mt_f32)_mm512_dpbf16_ps((__m512)sum, mt_get_pairs(a, n), mt_get_pairs(b, n));
}
#endif

// Transposes a square of vectors by perfect shuffles. Each of log2(lanes) rounds interleaves row i with row
// i + lanes / 2. After the last one element (i, j) is element (j, i).
#if defined(__clang__)
#define MT_INTERLEAVE(a, b, high)                                                                  \
  ({                                                                                               \
    __typeof__(a) r_;                                                                              \
    int n_ = (int)(sizeof(a) / sizeof(a[0]));                                                      \
    for (int i_ = 0; i_ < n_; ++i_) r_[i_] = (i_ & 1 ? b : a)[(i_ + (high) * n_) / 2];             \
    r_;                                                                                            \
  })
#else
#define MT_INTERLEAVE(a, b, high) __builtin_shuffle(a, b, (high) ? upper : lower)
#endif

#define MT_TRANSPOSE(C, U, I)                                                                      \
  MT_INLINE void mt_transpose_##C(mt_##C r[MT_LANES_##C]) {                                        \
    enum { n = MT_LANES_##C };                                                                     \
    U lower, upper;                                                                                \
    for (I i = 0; i < n; ++i) {                                                                    \
      lower[i] = i / 2 + (i & 1) * n;                                                              \
      upper[i] = i / 2 + n / 2 + (i & 1) * n;                                                      \
    }                                                                                              \
    (void)lower, (void)upper;                                                                      \
    _Pragma("GCC unroll 8") for (int rounds = n; rounds > 1; rounds /= 2) {                        \
      mt_##C t[n];                                                                                 \
      _Pragma("GCC unroll 8") for (int i = 0; i < n / 2; ++i) {                                    \
        t[2 * i] = MT_INTERLEAVE(r[i], r[i + n / 2], 0);                                           \
        t[2 * i + 1] = MT_INTERLEAVE(r[i], r[i + n / 2], 1);                                       \
      }                                                                                            \
      _Pragma("GCC unroll 16") for (int i = 0; i < n; ++i) r[i] = t[i];                            \
    }                                                                                              \
  }
MT_TRANSPOSE(f32, mt_u32, uint32_t)
MT_TRANSPOSE(f64, mt_u64, uint64_t)

// to[i] = from[i] for begin <= i < end, else 0; for low <= i < high alone. Few elements, as a row of a small image has.
#if defined(__AVX512F__) && defined(__BMI2__)
MT_INLINE unsigned mt_below(idx n) { return n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u; }
MT_INLINE void mt_copy_run_f32(float* to, const float* from, idx low, idx high, idx begin, idx end) {
  for (idx i = low; i < high; i += 16) {
    const __mmask16 all = (__mmask16)mt_below(high - i);
    const __mmask16 some = (__mmask16)(all & mt_below(end - i) & ~mt_below(begin - i));
    _mm512_mask_storeu_ps(to + i, all, _mm512_maskz_loadu_ps(some, from + i));
  }
}
#else
MT_INLINE void mt_copy_run_f32(float* to, const float* from, idx low, idx high, idx begin, idx end) {
  for (idx i = low; i < high; ++i) {
    if (begin <= i && i < end) to[i] = from[i];
    else to[i] = 0.0f;
  }
}
#endif

// Transposes rows that are contiguous along k into a packed panel: panel[k * columns + n] = rows[n][k] for
// k < depth and n < columns. columns: a multiple of the lanes.
#define MT_PACK_TRANSPOSED(S, T, C, CT)                                                            \
  static __attribute__((noinline, unused)) void mt_pack_transposed_##S(                            \
      const T* const* rows, idx columns, idx depth, CT* panel) {                                   \
    enum { n = MT_LANES_##C };                                                                     \
    for (idx j = 0; j < columns; j += n)                                                           \
      for (idx k = 0; k < depth; k += n) {                                                         \
        mt_##C r[n];                                                                               \
        idx left = depth - k;                                                                      \
        _Pragma("GCC unroll 16") for (int i = 0; i < n; ++i) r[i] =                                \
            left >= n ? mt_get_##S(rows[j + i] + k) : mt_get_some_##S(rows[j + i] + k, left);      \
        mt_transpose_##C(r);                                                                       \
        if (left >= n) {                                                                           \
          _Pragma("GCC unroll 16") for (int i = 0; i < n; ++i)                                     \
              mt_put_##C(panel + (k + i) * columns + j, r[i]);                                     \
        } else {                                                                                   \
          for (int i = 0; i < left; ++i) mt_put_##C(panel + (k + i) * columns + j, r[i]);          \
        }                                                                                          \
      }                                                                                            \
  }
MT_PACK_TRANSPOSED(f32, float, f32, float)
MT_PACK_TRANSPOSED(f64, double, f64, double)
MT_PACK_TRANSPOSED(f16, uint16_t, f32, float)
MT_PACK_TRANSPOSED(bf16, uint16_t, f32, float)
