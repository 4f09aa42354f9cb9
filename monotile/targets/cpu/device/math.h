// Floating-point functions of the language: NaN, infinities and subnormals as IEEE has them, errors of
// 1 to 2 units in the last place. The frequent ones are written without branches, so that the compiler vectorises them. The
// others are the C library's.
#pragma once
#include <math.h>

#include "cpu/device/float8.h"

#define MT_INF __builtin_inff()
#define MT_NAN __builtin_nanf("")

#ifdef __FMA__
#define mt_fma(a, b, c) __builtin_fmaf(a, b, c)
#else
#define mt_fma(a, b, c) ((a) * (b) + (c))
#endif

#define MT_LIBRARY1(N)                                                                             \
  MT_INLINE float mt_##N##_f32(float x) { return N##f(x); }                                        \
  MT_INLINE double mt_##N##_f64(double x) { return N(x); }
#define MT_LIBRARY1_F64(N) MT_INLINE double mt_##N##_f64(double x) { return N(x); }
#define MT_LIBRARY2_F64(N) MT_INLINE double mt_##N##_f64(double a, double b) { return N(a, b); }
#define MT_LIBRARY2(N)                                                                             \
  MT_INLINE float mt_##N##_f32(float a, float b) { return N##f(a, b); }                            \
  MT_LIBRARY2_F64(N)

MT_LIBRARY1(log2) MT_LIBRARY1(log10) MT_LIBRARY1(sin) MT_LIBRARY1(cos) MT_LIBRARY1(tan)
MT_LIBRARY1(asin) MT_LIBRARY1_F64(acos) MT_LIBRARY1(atan) MT_LIBRARY1(sinh) MT_LIBRARY1(cosh)
MT_LIBRARY1(asinh) MT_LIBRARY1(acosh) MT_LIBRARY1(atanh) MT_LIBRARY1(erfc)
MT_LIBRARY1(sqrt) MT_LIBRARY1(floor) MT_LIBRARY1(ceil) MT_LIBRARY1(trunc)
MT_LIBRARY1_F64(exp) MT_LIBRARY1_F64(exp2) MT_LIBRARY1_F64(expm1) MT_LIBRARY1_F64(log)
MT_LIBRARY1_F64(log1p) MT_LIBRARY1_F64(tanh) MT_LIBRARY1_F64(erf)
MT_LIBRARY2_F64(pow) MT_LIBRARY2(atan2) MT_LIBRARY2(copysign) MT_LIBRARY2(hypot)
MT_LIBRARY2(nextafter) MT_LIBRARY2(fmod)

// The re-entrant forms: lgamma itself writes a global.
MT_INLINE float mt_lgamma_f32(float x) { int sign; return lgammaf_r(x, &sign); }
MT_INLINE double mt_lgamma_f64(double x) { int sign; return lgamma_r(x, &sign); }
MT_INLINE float mt_round_f32(float x) { return rintf(x); }
MT_INLINE double mt_round_f64(double x) { return rint(x); }
MT_INLINE float mt_rsqrt_f32(float x) { return 1.0f / sqrtf(x); }
MT_INLINE double mt_rsqrt_f64(double x) { return 1.0 / sqrt(x); }
MT_INLINE float mt_div_f32(float a, float b) { return a / b; }
MT_INLINE double mt_div_f64(double a, double b) { return a / b; }
MT_INLINE float mt_div_by_f32(float x, float c) { return x / c; }
MT_INLINE float mt_abs_f32(float x) { return fabsf(x); }
MT_INLINE double mt_abs_f64(double x) { return fabs(x); }
// What a conversion to an integer is given. GCC takes (float)(int)x for trunc(x), which is -0 for -1 < x < 0.
MT_INLINE float mt_to_int_f32(float x) { return fabsf(x) < 1.0f ? 0.0f : x; }
MT_INLINE double mt_to_int_f64(double x) { return fabs(x) < 1.0 ? 0.0 : x; }
MT_INLINE int32_t mt_bits_f32(float x) { return (int32_t)mt_bits(x); }
MT_INLINE int16_t mt_bits_f16(float x) { return (int16_t)mt_to_f16(x); }
MT_INLINE int16_t mt_bits_bf16(float x) { return (int16_t)mt_to_bf16(x); }
MT_INLINE float mt_f32_of_bits(int32_t x) { return mt_float((uint32_t)x); }
MT_INLINE float mt_f16_of_bits(int16_t x) { return mt_from_f16((uint16_t)x); }
MT_INLINE float mt_bf16_of_bits(int16_t x) { return mt_from_bf16((uint16_t)x); }
MT_INLINE int64_t mt_bits_f64(double x) {
  int64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
MT_INLINE double mt_f64_of_bits(int64_t bits) {
  double x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
MT_INLINE bool mt_isinf_f32(float x) { return fabsf(x) == MT_INF; }
MT_INLINE bool mt_isinf_f64(double x) { return fabs(x) == (double)MT_INF; }

// NaN if either side is.
// With a literal it is one instruction, where NaN is `a`.
#define MT_LITERAL(b) (__builtin_constant_p(b) && (b) == (b))
MT_INLINE float mt_max_f32(float a, float b) {
  if (MT_LITERAL(b)) return b > a ? b : a;
  return a > b || a != a ? a : b;
}
MT_INLINE float mt_min_f32(float a, float b) {
  if (MT_LITERAL(b)) return b < a ? b : a;
  return a < b || a != a ? a : b;
}
MT_INLINE double mt_max_f64(double a, double b) { return a > b || a != a ? a : b; }
MT_INLINE double mt_min_f64(double a, double b) { return a < b || a != a ? a : b; }

// x^n by products in double precision, which a power up to the sixteenth neither leaves too early nor rounds twice.
#define MT_WHOLE(b) (MT_LITERAL(b) && (b) == (float)(int)(b) && (b) >= -16.0f && (b) <= 16.0f)
MT_INLINE float mt_power(float x, int n) {
  int m = n < 0 ? -n : n;
  double x1 = x, x2 = x1 * x1, x4 = x2 * x2, x8 = x4 * x4, result = m & 1 ? x1 : 1.0;
  result *= m & 2 ? x2 : 1.0;
  result *= m & 4 ? x4 : 1.0;
  result *= m & 8 ? x8 : 1.0;
  result *= m & 16 ? x8 * x8 : 1.0;
  return (float)(n < 0 ? 1.0 / result : result);
}
MT_INLINE float mt_pow_f32(float a, float b) {
  return MT_WHOLE(b) ? mt_power(a, (int)b) : powf(a, b);
}

// exp(r) - 1 - r for |r| <= ln(2) / 2, as r^2 times a polynomial.
MT_INLINE float mt_exp_tail(float r) {
  float p = 1.98756911e-4f;
  p = mt_fma(p, r, 1.39819994e-3f);
  p = mt_fma(p, r, 8.33345205e-3f);
  p = mt_fma(p, r, 4.16657962e-2f);
  p = mt_fma(p, r, 1.66666657e-1f);
  p = mt_fma(p, r, 0.5f);
  return p * r * r;
}

MT_INLINE float mt_nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }  // |x| < 2^22
MT_INLINE float mt_power_of_2(int32_t n) { return mt_float((uint32_t)(n + 127) << 23); }

// p * 2^n in two steps, so that neither factor leaves the normal range where the result does not.
MT_INLINE float mt_scale(float p, float n) {
  int32_t whole = (int32_t)n, half = whole >> 1;
  return p * mt_power_of_2(half) * mt_power_of_2(whole - half);
}

MT_INLINE float mt_exp_f32(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  float n = mt_nearest(x * 1.44269504f);
  float r = mt_fma(n, -0.693359375f, x);
  r = mt_fma(n, 2.12194440e-4f, r);
  return mt_scale(mt_exp_tail(r) + r + 1.0f, n);
}

MT_INLINE float mt_exp2_f32(float x) {
  x = x > 129.0f ? 129.0f : x;
  x = x < -151.0f ? -151.0f : x;
  float n = mt_nearest(x);
  float r = (x - n) * 0.693147181f;
  return mt_scale(mt_exp_tail(r) + r + 1.0f, n);
}

MT_INLINE float mt_expm1_f32(float x) {
  float y = x > 89.0f ? 89.0f : x;
  y = y < -18.0f ? -18.0f : y;
  float n = mt_nearest(y * 1.44269504f);
  float r = mt_fma(n, -0.693359375f, y);
  r = mt_fma(n, 2.12194440e-4f, r);
  float q = mt_exp_tail(r) + r;
  float half = mt_power_of_2((int32_t)n - 1);  // 2^n itself may overflow
  float result = mt_fma(q, half, half - 0.5f) * 2.0f;
  return x == 0.0f ? x : result;  // keeps the sign of zero
}

// log((1 + f) * 2^k): FreeBSD's logf.
MT_INLINE float mt_log_parts(float f, float k) {
  float s = f / (2.0f + f), z = s * s, w = z * z, square = 0.5f * f * f;
  float odd = w * mt_fma(w, 0.24279078841f, 0.40000972152f);
  float even = z * mt_fma(w, 0.28498786688f, 0.66666662693f);
  float rest = mt_fma(s, square + odd + even, k * 9.0580006145e-06f);
  return mt_fma(k, 6.9313812256e-01f, rest - square + f);
}

MT_INLINE float mt_log_f32(float x) {
  bool tiny = x < 1.17549435e-38f;
  uint32_t u = mt_bits(tiny ? x * 0x1p25f : x) + (0x3f800000u - 0x3f3504f3u);
  int32_t k = (int32_t)(u >> 23) - 127 - (tiny ? 25 : 0);
  float f = mt_float((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  float y = mt_log_parts(f, (float)k);
  y = x == 0.0f ? -MT_INF : y;
  y = x < 0.0f ? MT_NAN : y;
  return x < MT_INF ? y : x;  // infinity and NaN are their own logarithms
}

MT_INLINE float mt_log1p_f32(float x) {
  float u = 1.0f + x;
  float y = mt_log_f32(u) + (x - (u - 1.0f)) / u;  // what the rounding of 1 + x lost
  y = u == 0.0f ? -MT_INF : y;
  y = u == MT_INF ? MT_INF : y;
  return u == 1.0f ? x : y;
}

MT_INLINE float mt_tanh_f32(float x) {
  float a = fabsf(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = mt_fma(p, z, 2.06390887954e-2f);
  p = mt_fma(p, z, -5.37397155531e-2f);
  p = mt_fma(p, z, 1.33314422036e-1f);
  p = mt_fma(p, z, -3.33332819422e-1f);
  float near = copysignf(mt_fma(p * z, x, x), x);  // keeps the sign of zero
  float far = copysignf(1.0f - 2.0f / (mt_exp_f32(a + a) + 1.0f), x);
  return a < 0.625f ? near : far;
}

MT_INLINE float mt_erf_f32(float x) {
  float t = fabsf(x), s = x * x;
  float p = mt_fma(mt_fma(-1.72853470e-5f, t, 3.83197126e-4f), s,
                   mt_fma(-3.88396438e-3f, t, 2.42546219e-2f));
  p = mt_fma(p, t, -1.06777877e-1f);
  p = mt_fma(p, t, -6.34846687e-1f);
  p = mt_fma(p, t, -1.28717512e-1f);
  p = mt_fma(p, t, -t);
  float far = copysignf(t >= 4.0f ? 1.0f : 1.0f - mt_exp_f32(p), x);
  float q = -5.96761703e-4f;
  q = mt_fma(q, s, 4.99119423e-3f);
  q = mt_fma(q, s, -2.67681349e-2f);
  q = mt_fma(q, s, 1.12819925e-1f);
  q = mt_fma(q, s, -3.76125336e-1f);
  q = mt_fma(q, s, 1.28379166e-1f);
  float near = mt_fma(q, x, x);
  return t > 0.927734375f ? far : near;
}

// FreeBSD's acosf, in which one rational function serves z = x^2 and, beyond a half, z = (1 - |x|) / 2.
MT_INLINE float mt_acos_f32(float x) {
  float a = fabsf(x);
  bool far = a > 0.5f;
  float z = far ? 0.5f - 0.5f * a : x * x, s = sqrtf(z);
  float r = z * mt_fma(z, mt_fma(z, -8.6563630030e-03f, -4.2743422091e-02f), 1.6666586697e-01f);
  r = r / mt_fma(z, -7.0662963390e-01f, 1.0f);
  float near = 1.5707962513f - (x - mt_fma(-x, r, 7.5497894159e-08f));
  float lost = mt_fma(-s, s, z) / (s + s);  // what the rounding of the root lost
  float right = 2.0f * (s + mt_fma(r, s, s > 0.0f ? lost : 0.0f));
  float left = 2.0f * (1.5707962513f - (s + mt_fma(r, s, -7.5497894159e-08f)));
  left = x > 0.0f ? right : left;
  return a > 1.0f || x != x ? MT_NAN : far ? left : near;
}

MT_INLINE float mt_logistic_f32(float x) { return 1.0f / (1.0f + mt_exp_f32(-x)); }
MT_INLINE double mt_logistic_f64(double x) { return 1.0 / (1.0 + exp(-x)); }
// cos(pi x) = sin(pi h), of which h is exact; the polynomial is Taylor's.
MT_INLINE float mt_cospi_f32(float x) {
  float h = 0.5f - fabsf(x - 2.0f * rintf(0.5f * x)), y = 3.14159265f * h, s = y * y, p = -2.50521084e-8f;
  p = mt_fma(p, s, 2.75573192e-6f);
  p = mt_fma(p, s, -1.98412698e-4f);
  p = mt_fma(p, s, 8.33333333e-3f);
  p = mt_fma(p, s, -1.66666667e-1f);
  return mt_fma(p * s, y, y);
}
MT_INLINE double mt_cospi_f64(double x) {
  return sin(3.14159265358979323846 * (0.5 - fabs(x - 2.0 * rint(0.5 * x))));
}
MT_INLINE float mt_one_plus_erf_f32(float x) { return 1.0f + mt_erf_f32(x); }
MT_INLINE double mt_one_plus_erf_f64(double x) { return erfc(-x); }
