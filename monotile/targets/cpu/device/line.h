// The sum of products of two lines of elements side by side. A template like dot.h:
//   MT_NAME     the function that it defines
//   MT_C        compute type, f32 or f64
//   MT_A, MT_B  storage types of the lines: f32, f64, f16, bf16
#include "cpu/device/vector.h"

#define MT_VECTOR MT_JOIN(mt_, MT_C)
#define MT_LANES MT_JOIN(MT_LANES_, MT_C)
#define MT_GET_A MT_JOIN(mt_get_, MT_A)
#define MT_GET_B MT_JOIN(mt_get_, MT_B)
#define MT_SOME_A MT_JOIN(mt_get_some_, MT_A)
#define MT_SOME_B MT_JOIN(mt_get_some_, MT_B)
#define MT_IS_bf16 1
#define MT_PAIRS_(a, b) (MT_IS_##a + MT_IS_##b == 2)
#define MT_PAIRS(a, b) MT_PAIRS_(a, b)

// Several sums side by side: each addition waits for the one before.
MT_INLINE MT_JOIN(MT_TYPE_, MT_C) MT_NAME(const MT_JOIN(MT_TYPE_, MT_A) * a, const MT_JOIN(MT_TYPE_, MT_B) * b, idx k) {
  enum { sums = 4 };
  MT_VECTOR sum[sums] = {{0}};
  idx p = 0;
#if defined(__AVX512BF16__) && MT_VECTOR_BYTES == 64 && MT_PAIRS(MT_A, MT_B)
  for (; p + 32 * sums <= k; p += 32 * sums)
#pragma GCC unroll 4
    for (int i = 0; i < sums; ++i) sum[i] = mt_add_pairs(sum[i], a + p + 32 * i, b + p + 32 * i, 32);
  for (; p < k; p += 32) sum[0] = mt_add_pairs(sum[0], a + p, b + p, mt_min_idx(32, k - p));
#else
  for (; p + sums * MT_LANES <= k; p += sums * MT_LANES)
#pragma GCC unroll 4
    for (int i = 0; i < sums; ++i) sum[i] += MT_GET_A(a + p + i * MT_LANES) * MT_GET_B(b + p + i * MT_LANES);
  for (; p + MT_LANES <= k; p += MT_LANES) sum[0] += MT_GET_A(a + p) * MT_GET_B(b + p);
  if (p < k) sum[1] += MT_SOME_A(a + p, k - p) * MT_SOME_B(b + p, k - p);
#endif
  return MT_JOIN(mt_total_, MT_C)((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

#undef MT_VECTOR
#undef MT_LANES
#undef MT_GET_A
#undef MT_GET_B
#undef MT_SOME_A
#undef MT_SOME_B
#undef MT_IS_bf16
#undef MT_PAIRS_
#undef MT_PAIRS
#include "cpu/device/template_end.h"
