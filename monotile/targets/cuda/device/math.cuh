// The operations of the language on scalars (monotile/ir/expr.py says what each means), by the names that generated code
// uses: mt_<op>_<type>. smaller floats compute in float; the functions of float are the device library's (1 to 2 ulp).
#pragma once
#include "cuda/device/float8.cuh"

#ifdef __CUDACC_RTC__
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
#else
#include <cstdint>
#endif

#define MT_FN __device__ __forceinline__
#define MT_INF __uint_as_float(0x7f800000u)
#define MT_NAN __uint_as_float(0x7fc00000u)

// Loads and stores of 16-bit floats, as float.
MT_FN float mt_load_f16(const uint16_t* p) { return mt::widen(mt::f16{*p}); }
MT_FN float mt_load_bf16(const uint16_t* p) { return mt::widen(mt::bf16{*p}); }
MT_FN void mt_store_f16(uint16_t* p, float x) { *p = mt::to_f16(x).bits; }
MT_FN void mt_store_bf16(uint16_t* p, float x) { *p = mt::to_bf16(x).bits; }

// The nearest value of TF32, ties away from zero, as `ptx::to_tf32`.
MT_FN float mt_to_tf32_f32(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x7f800000u) == 0x7f800000u ? x : __uint_as_float((bits + 0x1000u) & 0xffffe000u);
}

// Rounds to 16 bits what the generated code keeps in float.
MT_FN float mt_round_f16(float x) { return mt::widen(mt::to_f16(x)); }
MT_FN float mt_round_bf16(float x) { return mt::widen(mt::to_bf16(x)); }
// The same of 8-bit floats.
#define MT_FLOAT8(name)                                                             \
  MT_FN float mt_load_##name(const uint8_t* p) { return mt::widen(mt::name{*p}); } \
  MT_FN void mt_store_##name(uint8_t* p, float x) { *p = mt::to_##name(x).bits; }  \
  MT_FN float mt_round_##name(float x) { return mt::widen(mt::to_##name(x)); }     \
  MT_FN int8_t mt_bits_##name(float x) { return int8_t(mt::to_##name(x).bits); }   \
  MT_FN float mt_##name##_of_bits(int8_t x) { return mt::widen(mt::name{uint8_t(x)}); }
MT_FLOAT8(f8e4m3)
MT_FLOAT8(f8e5m2)
MT_FLOAT8(f8e8m0)
#undef MT_FLOAT8
// To float, rounded to odd: rounding that again to 16 bits gives what one rounding from double would.
MT_FN float mt_odd_f32(double x) {
  float y = __double2float_rz(x);
  return y == y && double(y) != x ? __uint_as_float(__float_as_uint(y) | 1u) : y;
}

// The operand of a conversion to an integer.
MT_FN float mt_to_int_f32(float x) { return x; }
MT_FN double mt_to_int_f64(double x) { return x; }

// The bits of floats, and the floats that have them.
MT_FN int32_t mt_bits_f32(float x) { return int32_t(__float_as_uint(x)); }
MT_FN int64_t mt_bits_f64(double x) { return __double_as_longlong(x); }
MT_FN int16_t mt_bits_f16(float x) { return int16_t(mt::to_f16(x).bits); }
MT_FN int16_t mt_bits_bf16(float x) { return int16_t(mt::to_bf16(x).bits); }
MT_FN float mt_f32_of_bits(int32_t x) { return __uint_as_float(uint32_t(x)); }
MT_FN double mt_f64_of_bits(int64_t x) { return __longlong_as_double(x); }
MT_FN float mt_f16_of_bits(int16_t x) { return mt::widen(mt::f16{uint16_t(x)}); }
MT_FN float mt_bf16_of_bits(int16_t x) { return mt::widen(mt::bf16{uint16_t(x)}); }

// Functions of one float.
#define MT_UNARY(op, single, twice)                  \
  MT_FN float mt_##op##_f32(float x) { return single(x); } \
  MT_FN double mt_##op##_f64(double x) { return twice(x); }
MT_UNARY(exp, expf, exp)
MT_UNARY(exp2, exp2f, exp2)
MT_UNARY(expm1, expm1f, expm1)
MT_UNARY(log, logf, log)
MT_UNARY(log2, log2f, log2)
MT_UNARY(log10, log10f, log10)
MT_UNARY(log1p, log1pf, log1p)
MT_UNARY(sin, sinf, sin)
MT_UNARY(cos, cosf, cos)
MT_UNARY(tan, tanf, tan)
MT_UNARY(asin, asinf, asin)
MT_UNARY(acos, acosf, acos)
MT_UNARY(atan, atanf, atan)
MT_UNARY(sinh, sinhf, sinh)
MT_UNARY(cosh, coshf, cosh)
MT_UNARY(tanh, tanhf, tanh)
MT_UNARY(asinh, asinhf, asinh)
MT_UNARY(acosh, acoshf, acosh)
MT_UNARY(atanh, atanhf, atanh)
MT_UNARY(erf, erff, erf)
MT_UNARY(erfc, erfcf, erfc)
MT_UNARY(lgamma, lgammaf, lgamma)
MT_UNARY(floor, floorf, floor)
MT_UNARY(ceil, ceilf, ceil)
MT_UNARY(trunc, truncf, trunc)
MT_UNARY(round, rintf, rint)
MT_UNARY(abs, fabsf, fabs)
MT_UNARY(rsqrt, rsqrtf, rsqrt)
#undef MT_UNARY

// x / c by way of 1 / c (Markstein): a product, its remainder, and a correction. It is correctly rounded above 1e-30, and within a
// unit in the last place below. Unlike a division it has no branch.
MT_FN float mt_div_with_f32(float x, float c, float one_over) {
  float q = x * one_over, better = fmaf(fmaf(-c, q, x), one_over, q);
  bool plain = (q != 0) & (fabsf(q) < MT_INF);  // no &&, of which NVRTC makes a branch
  return plain ? better : q;
}
// The same for a literal c, whose reciprocal the compiler computes.
MT_FN float mt_div_by_f32(float x, float c) { return mt_div_with_f32(x, c, 1.f / c); }
namespace mt {
// What numbers are divided by; by way of an approximate reciprocal, quotients are as of a correct one, but for those below 1e-30, which are
// within two units in the last place. Where the reciprocal might be subnormal or infinite, both sides of a quotient are brought nearer
// to 1 first; what that loses would be lost anyway.
struct Divisor {
  float scale, c, one_over;
  MT_FN explicit Divisor(float x) {
    scale = fabsf(x) < 1e-30f ? 0x1p64f : fabsf(x) > 1e30f ? 0x1p-64f : 1.f;
    c = x * scale, one_over = ptx::reciprocal_fast(c);
  }
  MT_FN float under(float x) const { return mt_div_with_f32(x * scale, c, one_over); }
};
}  // namespace mt
MT_FN float mt_div_f32(float a, float b) { return mt::Divisor(b).under(a); }
MT_FN double mt_div_f64(double a, double b) { return a / b; }

// By way of 1 / sqrt(x), its remainder and a correction, also without a branch.
MT_FN float mt_sqrt_f32(float x) {
  bool small = x < 1e-30f;
  float a = small ? x * 0x1p64f : x, r = rsqrtf(a), s = a * r, better = fmaf(fmaf(-s, s, a), .5f * r, s);
  bool plain = (x != 0) & (x != MT_INF);
  return plain ? small ? better * 0x1p-32f : better : x;
}
MT_FN double mt_sqrt_f64(double x) { return sqrt(x); }

// cos(pi x) = sin(pi h), of which h is exact; the polynomial is Taylor's.
MT_FN float mt_cospi_f32(float x) {
  float h = .5f - fabsf(x - 2.f * rintf(.5f * x)), y = 3.14159265f * h, s = y * y, p = -2.50521084e-8f;
  p = fmaf(p, s, 2.75573192e-6f);
  p = fmaf(p, s, -1.98412698e-4f);
  p = fmaf(p, s, 8.33333333e-3f);
  p = fmaf(p, s, -1.66666667e-1f);
  return fmaf(p * s, y, y);
}
MT_FN double mt_cospi_f64(double x) {
  return sin(3.14159265358979323846 * (.5 - fabs(x - 2. * rint(.5 * x))));
}

// 1 / (1 + exp(-x)), to 3 units in the last place.
MT_FN float mt_logistic_f32(float x) { return mt::ptx::reciprocal_fast(1.f + expf(-x)); }
MT_FN double mt_logistic_f64(double x) { return 1 / (1 + exp(-x)); }

// 1 + erf(x), to 2e-7; below zero that is erfc(|x|), to 2e-5 of it down to -4. log2(erfc(t)) is t times a polynomial, fitted
// on [0, 4] (least squares weighted towards the largest error of erfc), which goes on falling beyond.
MT_FN float mt_one_plus_erf_f32(float x) {
  float t = fabsf(x), p = -1.310141442e-6f;
  p = fmaf(p, t, 2.536689681e-5f);
  p = fmaf(p, t, -2.124444727e-4f);
  p = fmaf(p, t, 9.858093690e-4f);
  p = fmaf(p, t, -2.460236428e-3f);
  p = fmaf(p, t, 2.335121244e-4f);
  p = fmaf(p, t, 2.765508927e-2f);
  p = fmaf(p, t, -1.482903212e-1f);
  p = fmaf(p, t, -9.184449911e-1f);
  p = fmaf(p, t, -1.627907157f);
  float rest = mt::ptx::exp2_fast(p * t);
  return x < 0 ? rest : 2 - rest;
}
MT_FN double mt_one_plus_erf_f64(double x) { return erfc(-x); }
MT_FN bool mt_isinf_f32(float x) { return fabsf(x) == MT_INF; }
MT_FN bool mt_isinf_f64(double x) { return fabs(x) == double(MT_INF); }

// Functions of two floats.
#define MT_BINARY(op, single, twice)                                   \
  MT_FN float mt_##op##_f32(float a, float b) { return single(a, b); } \
  MT_FN double mt_##op##_f64(double a, double b) { return twice(a, b); }
MT_BINARY(pow, powf, pow)
MT_BINARY(atan2, atan2f, atan2)
MT_BINARY(copysign, copysignf, copysign)
MT_BINARY(hypot, hypotf, hypot)
MT_BINARY(nextafter, nextafterf, nextafter)
MT_BINARY(fmod, fmodf, fmod)
#undef MT_BINARY

// NaN if either side is.
MT_FN float mt_max_f32(float a, float b) { return mt::ptx::max_nan(a, b); }
MT_FN float mt_min_f32(float a, float b) { return mt::ptx::min_nan(a, b); }
MT_FN double mt_max_f64(double a, double b) { return a != a || a > b ? a : b; }
MT_FN double mt_min_f64(double a, double b) { return a != a || a < b ? a : b; }
MT_FN bool mt_max_b1(bool a, bool b) { return a || b; }
MT_FN bool mt_min_b1(bool a, bool b) { return a && b; }
MT_FN bool mt_add_b1(bool a, bool b) { return a || b; }
MT_FN bool mt_mul_b1(bool a, bool b) { return a && b; }

// Integers wrap; division by zero gives 0; shifts by the width or more leave zero or the sign.
#define MT_INTEGER(type, T, U)                                                                   \
  MT_FN T mt_neg_##type(T a) { return T(U(0) - U(a)); }                                          \
  MT_FN T mt_abs_##type(T a) { return a < 0 ? mt_neg_##type(a) : a; }                            \
  MT_FN T mt_add_##type(T a, T b) { return T(U(a) + U(b)); }                                     \
  MT_FN T mt_sub_##type(T a, T b) { return T(U(a) - U(b)); }                                     \
  MT_FN T mt_mul_##type(T a, T b) { return T(U(a) * U(b)); }                                     \
  MT_FN T mt_max_##type(T a, T b) { return a > b ? a : b; }                                      \
  MT_FN T mt_min_##type(T a, T b) { return a < b ? a : b; }                                      \
  MT_FN T mt_truncdiv_##type(T a, T b) {                                                         \
    return b == 0 ? T(0) : T(-1) < T(0) && b == T(-1) ? mt_neg_##type(a) : T(a / b);             \
  }                                                                                              \
  MT_FN T mt_rem_##type(T a, T b) {                                                              \
    return b == 0 || (T(-1) < T(0) && b == T(-1)) ? T(0) : T(a % b);                             \
  }                                                                                              \
  MT_FN T mt_floordiv_##type(T a, T b) {                                                         \
    T q = mt_truncdiv_##type(a, b), r = mt_rem_##type(a, b);                                     \
    return r != 0 && (r < 0) != (b < 0) ? T(q - 1) : q;                                          \
  }                                                                                              \
  MT_FN T mt_mod_##type(T a, T b) {                                                              \
    T r = mt_rem_##type(a, b);                                                                   \
    return r != 0 && (r < 0) != (b < 0) ? T(r + b) : r;                                          \
  }                                                                                              \
  MT_FN T mt_ipow_##type(T a, T b) {                                                             \
    if (b < 0) return a == 1 ? T(1) : T(-1) < T(0) && a == T(-1) ? (b & 1 ? a : T(1)) : T(0);    \
    U result = 1, square = U(a);                                                                 \
    for (U rest = U(b); rest; rest >>= 1, square = U(square * square))                           \
      if (rest & 1) result = U(result * square);                                                 \
    return T(result);                                                                            \
  }                                                                                              \
  MT_FN T mt_shl_##type(T a, T b) {                                                              \
    return b < 0 || b >= T(sizeof(T) * 8) ? T(0) : T(U(a) << b);                                 \
  }                                                                                              \
  MT_FN T mt_shr_##type(T a, T b) {                                                              \
    return b < 0 || b >= T(sizeof(T) * 8) ? (a < 0 ? T(-1) : T(0)) : T(a >> b);                  \
  }
#pragma nv_diag_suppress 186
MT_INTEGER(u8, uint8_t, uint32_t)
MT_INTEGER(i8, int8_t, uint32_t)
MT_INTEGER(i16, int16_t, uint32_t)
MT_INTEGER(i32, int32_t, uint32_t)
MT_INTEGER(i64, int64_t, uint64_t)
#pragma nv_diag_default 186
#undef MT_INTEGER

// Two words of Philox 4x32-10 at counter (a, 0) with key b.
MT_FN int64_t mt_philox_i64(int64_t a, int64_t b) {
  uint32_t w0 = uint32_t(a), w1 = uint32_t(uint64_t(a) >> 32), w2 = 0, w3 = 0;
  uint32_t k0 = uint32_t(b), k1 = uint32_t(uint64_t(b) >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    uint64_t x = uint64_t(w0) * 0xD2511F53u, y = uint64_t(w2) * 0xCD9E8D57u;
    w0 = uint32_t(y >> 32) ^ w1 ^ k0, w1 = uint32_t(y);
    w2 = uint32_t(x >> 32) ^ w3 ^ k1, w3 = uint32_t(x);
  }
  return int64_t(uint64_t(w1) << 32 | w0);
}

// Index arithmetic: `idx` is the generated code's index type, 32 or 64 bits; divisors are positive.
template <class T, class U>
MT_FN T mt_min_idx(T a, U b) { return a < T(b) ? a : T(b); }
template <class T, class U>
MT_FN T mt_max_idx(T a, U b) { return a > T(b) ? a : T(b); }
template <class T>
MT_FN T mt_floordiv_idx(T a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
template <class T>
MT_FN T mt_mod_idx(T a, int b) { return a - mt_floordiv_idx(a, b) * b; }
