// A register tile of a matrix product whose right operand is contiguous along n: MT_M rows by MT_N vectors of
// sums. Each value of k adds a column of the left operand times a row of the right. A template like dot.h:
//   MT_NAME     the function that it defines
//   MT_M, MT_N  rows, and vectors of columns, of the tile
//   MT_C        compute type, f32 or f64, also the left operand's type in memory
//   MT_B        storage type of the right operand: f32, f64, f16, bf16
//   MT_A        how the left one is walked: along `step` (elements from one value of k to the next), by a `table` of where each lies, or in `runs` of so
//               many neighbours: `a` then has the rows' pointers of each run
//   MT_APART    values of k for each line that the tile asks for of what comes next; 0: it asks for nothing
//   MT_RUN      such lines that lie side by side, of which one run begins `jump` bytes behind another; 0: all do
#include "cpu/device/vector.h"

#define MT_VECTOR MT_JOIN(mt_, MT_C)
#define MT_LANES MT_JOIN(MT_LANES_, MT_C)
#define MT_SCALAR MT_JOIN(MT_TYPE_, MT_C)

#define MT_WALK_step idx
#define MT_WALK_table const idx*
#define MT_WALK_runs idx
#define MT_AT_step(walk, p) ((walk) * (p))
#define MT_AT_table(walk, p) ((ptrdiff_t)(walk)[p])
#define MT_AT_runs(walk, p) ((p) - begin)
#define MT_TAKEN_step(walk) k
#define MT_TAKEN_table(walk) k
#define MT_TAKEN_runs(walk) (walk)
#if MT_APART > 0 && MT_RUN > 0
#define MT_LINE(n) ((n) / MT_RUN * (ptrdiff_t)jump + (n) % MT_RUN * 64)
#else
#define MT_LINE(n) ((n) * 64)
#endif

// c[i][j] = (first ? 0 : c[i][j]) + sum over k of a[i][at k] * b[k * ldb + j]; ldc: elements between rows of c.
static __attribute__((noinline)) void MT_NAME(const MT_SCALAR* const* a,
                                              MT_JOIN(MT_WALK_, MT_A) walk,
                                              const MT_JOIN(MT_TYPE_, MT_B) * b, idx ldb, idx k,
                                              MT_SCALAR* c, idx ldc, bool first, const char* next, idx jump) {
  (void)next, (void)jump;
  MT_VECTOR sum[MT_M][MT_N];
#pragma GCC unroll 32
  for (int i = 0; i < MT_M; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < MT_N; ++j) sum[i][j] = (MT_VECTOR){0};
  const ptrdiff_t taken = MT_JOIN(MT_TAKEN_, MT_A)(walk);
  for (ptrdiff_t begin = 0; begin < k; begin += taken, a += MT_M)
  for (ptrdiff_t p = begin; p < begin + taken; ++p, b += ldb) {
#if MT_APART > 0
    if (p % MT_APART == 0) __builtin_prefetch(next + MT_LINE(p / MT_APART), 0, 2);  // to the second cache
#endif
    ptrdiff_t q = MT_JOIN(MT_AT_, MT_A)(walk, p);
    MT_VECTOR y[MT_N];
#pragma GCC unroll 8
    for (int j = 0; j < MT_N; ++j) y[j] = MT_JOIN(mt_get_, MT_B)(b + j * MT_LANES);
#pragma GCC unroll 32
    for (int i = 0; i < MT_M; ++i) {
      MT_SCALAR x = a[i][q];
#pragma GCC unroll 8
      for (int j = 0; j < MT_N; ++j) sum[i][j] += x * y[j];
    }
  }
#pragma GCC unroll 32
  for (int i = 0; i < MT_M; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < MT_N; ++j) {
      MT_SCALAR* at = c + i * ldc + j * MT_LANES;
      // The sum of a chunk of k is added to the total as one term: rounding errors grow with the chunk, not with all of k.
      if (!first) sum[i][j] += MT_JOIN(mt_get_, MT_C)(at);
      MT_JOIN(mt_put_, MT_C)(at, sum[i][j]);
    }
}

#undef MT_VECTOR
#undef MT_LANES
#undef MT_SCALAR
#undef MT_WALK_step
#undef MT_WALK_table
#undef MT_AT_step
#undef MT_AT_table
#undef MT_WALK_runs
#undef MT_AT_runs
#undef MT_TAKEN_step
#undef MT_TAKEN_table
#undef MT_TAKEN_runs
#undef MT_LINE
#undef MT_APART
#undef MT_RUN
#include "cpu/device/template_end.h"
