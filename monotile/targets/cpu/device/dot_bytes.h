// A register tile of a matrix product of 8-bit integers that are contiguous along k, summed in int32: MT_M x MT_N vectors of partial
// sums. The instruction takes unsigned bytes times signed ones: of two operands of one kind, one is moved by 128, and what that adds to
// the sums is taken away again. A template: include it once for each set of
//   MT_NAME     the function that it defines
//   MT_M, MT_N  rows and columns of the tile
//   MT_C        i32
//   MT_A, MT_B  storage types of the left and the right operand: i8, u8
#include "cpu/device/bytes.h"

#define MT_A_SIGNED MT_JOIN(MT_SIGNED_, MT_A)
#define MT_B_SIGNED MT_JOIN(MT_SIGNED_, MT_B)
#define MT_LEFT_SUMS (!MT_A_SIGNED && !MT_B_SIGNED)  // of bytes that are not moved, where the others are
#define MT_RIGHT_SUMS (MT_A_SIGNED && MT_B_SIGNED)

MT_INLINE void MT_JOIN(MT_NAME, _step)(const mt_bytes x[MT_M], const mt_bytes y[MT_N], mt_i32 sum[MT_M][MT_N],
                                              mt_i32 rows[MT_M], mt_i32 columns[MT_N]) {
  const mt_bytes one = (mt_bytes){0} + 1, moved = one << 7;
  (void)one, (void)moved, (void)rows, (void)columns;
#if MT_LEFT_SUMS
#pragma GCC unroll 16
  for (int i = 0; i < MT_M; ++i) rows[i] = mt_dot_bytes(rows[i], x[i], one);
#endif
#pragma GCC unroll 16
  for (int j = 0; j < MT_N; ++j) {
#if MT_RIGHT_SUMS
    columns[j] = mt_dot_bytes(columns[j], one, y[j]);
#endif
#pragma GCC unroll 16
    for (int i = 0; i < MT_M; ++i)
#if MT_RIGHT_SUMS
      sum[i][j] = mt_dot_bytes(sum[i][j], x[i] ^ moved, y[j]);
#elif MT_LEFT_SUMS
      sum[i][j] = mt_dot_bytes(sum[i][j], x[i], y[j] ^ moved);
#elif MT_A_SIGNED
      sum[i][j] = mt_dot_bytes(sum[i][j], y[j], x[i]);
#else
      sum[i][j] = mt_dot_bytes(sum[i][j], x[i], y[j]);
#endif
  }
}

// c[i][j] = (first ? 0 : c[i][j]) + sum over k of a[i][k] * b[j][k]; ldc: elements between rows of c.
static __attribute__((noinline)) void MT_NAME(const MT_JOIN(MT_TYPE_, MT_A) * const* a, const MT_JOIN(MT_TYPE_, MT_B) * const* b,
                                              idx k, int32_t* c, idx ldc, bool first) {
  mt_i32 sum[MT_M][MT_N], rows[MT_M], columns[MT_N];
#pragma GCC unroll 16
  for (int i = 0; i < MT_M; ++i) {
    rows[i] = (mt_i32){0};
#pragma GCC unroll 16
    for (int j = 0; j < MT_N; ++j) sum[i][j] = (mt_i32){0};
  }
#pragma GCC unroll 16
  for (int j = 0; j < MT_N; ++j) columns[j] = (mt_i32){0};
  idx p = 0;
  for (; p < k; p += MT_VECTOR_BYTES) {
    mt_bytes x[MT_M], y[MT_N];
    const idx left = k - p;
#pragma GCC unroll 16
    for (int i = 0; i < MT_M; ++i) x[i] = left >= MT_VECTOR_BYTES ? mt_get_bytes(a[i] + p) : mt_get_some_bytes(a[i] + p, left);
#pragma GCC unroll 16
    for (int j = 0; j < MT_N; ++j) y[j] = left >= MT_VECTOR_BYTES ? mt_get_bytes(b[j] + p) : mt_get_some_bytes(b[j] + p, left);
    MT_JOIN(MT_NAME, _step)(x, y, sum, rows, columns);
  }
#pragma GCC unroll 16
  for (int i = 0; i < MT_M; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < MT_N; ++j) {
      const int32_t total = mt_total_i32(sum[i][j] + (rows[i] - columns[j]) * 128);
      c[i * ldc + j] = first ? total : c[i * ldc + j] + total;
    }
}

#undef MT_A_SIGNED
#undef MT_B_SIGNED
#undef MT_LEFT_SUMS
#undef MT_RIGHT_SUMS
#include "cpu/device/template_end.h"
