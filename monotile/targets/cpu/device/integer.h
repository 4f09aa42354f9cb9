// Integer operations of the language (monotile/ir/expr.py): they wrap, never trap, and a zero divisor gives 0.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MT_INLINE static inline __attribute__((always_inline, unused))

// T: the type. U: an unsigned type at least as wide as int, in which arithmetic wraps. B: bits of T.
#define MT_INTEGER(N, T, U, B)                                                                     \
  MT_INLINE T mt_add_##N(T a, T b) { return (T)((U)a + (U)b); }                                    \
  MT_INLINE T mt_sub_##N(T a, T b) { return (T)((U)a - (U)b); }                                    \
  MT_INLINE T mt_mul_##N(T a, T b) { return (T)((U)a * (U)b); }                                    \
  MT_INLINE T mt_min_##N(T a, T b) { return a < b ? a : b; }                                       \
  MT_INLINE T mt_max_##N(T a, T b) { return a > b ? a : b; }                                       \
  MT_INLINE T mt_neg_##N(T a) { return (T)(0 - (U)a); }                                            \
  MT_INLINE T mt_abs_##N(T a) { return a < 0 ? (T)(0 - (U)a) : a; }                                \
  /* The lowest value divided by -1 overflows: it wraps to itself. */                              \
  MT_INLINE T mt_truncdiv_##N(T a, T b) {                                                          \
    return b == 0 ? 0 : b == (T)-1 && (T)-1 < 0 ? (T)(0 - (U)a) : (T)(a / b);                      \
  }                                                                                                \
  MT_INLINE T mt_rem_##N(T a, T b) {                                                               \
    return b == 0 || (b == (T)-1 && (T)-1 < 0) ? 0 : (T)(a % b);                                   \
  }                                                                                                \
  MT_INLINE T mt_mod_##N(T a, T b) {                                                               \
    T r = mt_rem_##N(a, b);                                                                        \
    return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r;                                          \
  }                                                                                                \
  MT_INLINE T mt_floordiv_##N(T a, T b) {                                                          \
    T q = mt_truncdiv_##N(a, b), r = mt_rem_##N(a, b);                                             \
    return r != 0 && (r < 0) != (b < 0) ? (T)(q - 1) : q;                                          \
  }                                                                                                \
  MT_INLINE T mt_ipow_##N(T a, T b) {                                                              \
    if (b < 0) return a == 1 ? 1 : a == (T)-1 ? (b & 1 ? a : 1) : 0;                               \
    U r = 1, s = (U)a;                                                                             \
    for (T n = b; n > 0; n = (T)(n >> 1), s *= s)                                                  \
      if (n & 1) r *= s;                                                                           \
    return (T)r;                                                                                   \
  }                                                                                                \
  MT_INLINE T mt_shl_##N(T a, T b) { return b >= 0 && b < B ? (T)((U)a << b) : 0; }                \
  MT_INLINE T mt_shr_##N(T a, T b) {                                                               \
    return (T)(b >= 0 && b < B ? a >> b : a < 0 ? -1 : 0);                                         \
  }

MT_INTEGER(u8, uint8_t, uint32_t, 8)
MT_INTEGER(i8, int8_t, uint32_t, 8)
MT_INTEGER(i16, int16_t, uint32_t, 16)
MT_INTEGER(i32, int32_t, uint32_t, 32)
MT_INTEGER(i64, int64_t, uint64_t, 64)

// Two words of Philox 4x32-10 at counter (a, 0) with key b.
MT_INLINE int64_t mt_philox_i64(int64_t a, int64_t b) {
  uint32_t w0 = (uint32_t)a, w1 = (uint32_t)((uint64_t)a >> 32), w2 = 0, w3 = 0;
  uint32_t k0 = (uint32_t)b, k1 = (uint32_t)((uint64_t)b >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    uint64_t x = (uint64_t)w0 * 0xD2511F53u, y = (uint64_t)w2 * 0xCD9E8D57u;
    w0 = (uint32_t)(y >> 32) ^ w1 ^ k0, w1 = (uint32_t)y;
    w2 = (uint32_t)(x >> 32) ^ w3 ^ k1, w3 = (uint32_t)x;
  }
  return (int64_t)((uint64_t)w1 << 32 | w0);
}

// The index type: what indices are computed in. MT_WIDE: 32 bits are not enough.
#ifdef MT_WIDE
typedef int64_t idx;
#else
typedef int32_t idx;
#endif
MT_INLINE idx mt_min_idx(idx a, idx b) { return a < b ? a : b; }
MT_INLINE idx mt_max_idx(idx a, idx b) { return a > b ? a : b; }
MT_INLINE idx mt_floordiv_idx(idx a, idx b) {  // b > 0
  return a / b - (a % b < 0);
}
MT_INLINE idx mt_mod_idx(idx a, idx b) {  // b > 0
  idx r = a % b;
  return r < 0 ? r + b : r;
}
