// A register tile of a matrix product whose operands are both contiguous along k: MT_M x MT_N vectors of
// partial sums. A template: include it once for each set of
//   MT_NAME     the function that it defines
//   MT_M, MT_N  rows and columns of the tile
//   MT_C        compute type, f32 or f64
//   MT_A, MT_B  storage types of the left and the right operand: f32, f64, f16, bf16
#include "cpu/device/vector.h"

#define MT_VECTOR MT_JOIN(mt_, MT_C)
#define MT_LANES MT_JOIN(MT_LANES_, MT_C)
#define MT_SCALAR MT_JOIN(MT_TYPE_, MT_C)
#define MT_GET_A MT_JOIN(mt_get_, MT_A)
#define MT_GET_B MT_JOIN(mt_get_, MT_B)
#define MT_SOME_A MT_JOIN(mt_get_some_, MT_A)
#define MT_SOME_B MT_JOIN(mt_get_some_, MT_B)

// c[i][j] = (first ? 0 : c[i][j]) + sum over k of a[i][k] * b[j][k]; ldc: elements between rows of c.
static __attribute__((noinline)) void MT_NAME(const MT_JOIN(MT_TYPE_, MT_A) * const* a,
                                              const MT_JOIN(MT_TYPE_, MT_B) * const* b, idx k,
                                              MT_SCALAR* c, idx ldc, bool first) {
  MT_VECTOR sum[MT_M][MT_N];
#pragma GCC unroll 16
  for (int i = 0; i < MT_M; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < MT_N; ++j) sum[i][j] = (MT_VECTOR){0};
  idx p = 0;
  for (; p + MT_LANES <= k; p += MT_LANES) {
    MT_VECTOR x[MT_M];
#pragma GCC unroll 16
    for (int i = 0; i < MT_M; ++i) x[i] = MT_GET_A(a[i] + p);
#pragma GCC unroll 16
    for (int j = 0; j < MT_N; ++j) {
      MT_VECTOR y = MT_GET_B(b[j] + p);
#pragma GCC unroll 16
      for (int i = 0; i < MT_M; ++i) sum[i][j] += x[i] * y;
    }
  }
  if (p < k) {
    MT_VECTOR x[MT_M];
#pragma GCC unroll 16
    for (int i = 0; i < MT_M; ++i) x[i] = MT_SOME_A(a[i] + p, k - p);
#pragma GCC unroll 16
    for (int j = 0; j < MT_N; ++j) {
      MT_VECTOR y = MT_SOME_B(b[j] + p, k - p);
#pragma GCC unroll 16
      for (int i = 0; i < MT_M; ++i) sum[i][j] += x[i] * y;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < MT_M; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < MT_N; ++j) {
      MT_SCALAR total = MT_JOIN(mt_total_, MT_C)(sum[i][j]);
      c[i * ldc + j] = first ? total : c[i * ldc + j] + total;
    }
}

#undef MT_VECTOR
#undef MT_LANES
#undef MT_SCALAR
#undef MT_GET_A
#undef MT_GET_B
#undef MT_SOME_A
#undef MT_SOME_B
#include "cpu/device/template_end.h"
