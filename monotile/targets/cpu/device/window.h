// Sums over windows of several neighbouring places, each of a line of channels that lie side by side. A template like dot.h:
//   MT_NAME     the function that it defines
//   MT_M, MT_N  places, and vectors of channels, whose sums registers hold
//   MT_C        compute type, f32 or f64
//   MT_A, MT_B  storage types of the image and of what it is multiplied with: f32, f64, f16, bf16
#include "cpu/device/vector.h"

#define MT_VECTOR MT_JOIN(mt_, MT_C)
#define MT_LANES MT_JOIN(MT_LANES_, MT_C)
#define MT_IMAGE MT_JOIN(MT_TYPE_, MT_A)
#define MT_FACTOR MT_JOIN(MT_TYPE_, MT_B)
#define MT_SUM MT_JOIN(MT_TYPE_, MT_C)
#define MT_GET_A MT_JOIN(mt_get_, MT_A)
#define MT_GET_B MT_JOIN(mt_get_, MT_B)
#define MT_SOME_A MT_JOIN(mt_get_some_, MT_A)
#define MT_SOME_B MT_JOIN(mt_get_some_, MT_B)
#define MT_PUT MT_JOIN(mt_put_, MT_C)

// Elements from place to place, from row to row of a window, and from term to term of a row.
#ifndef MT_WINDOW_STEPS
#define MT_WINDOW_STEPS
typedef struct {
  idx place, row, term;
} mt_window_steps;
#endif

// Of so many vectors of channels. some: channels of the last one, all where it is no less than a vector has.
MT_INLINE void MT_JOIN(MT_NAME, _vectors)(const MT_IMAGE* x, mt_window_steps s, const MT_FACTOR* w, mt_window_steps t, idx rows, idx terms,
                                          MT_SUM* sums, idx pitch, int vectors, idx some) {
  MT_VECTOR sum[MT_M][MT_N] = {{{0}}};
  for (idx r = 0; r < rows; ++r)
    for (idx k = 0; k < terms; ++k) {
      const MT_IMAGE* const from = x + r * s.row + k * s.term;
      const MT_FACTOR* const by = w + r * t.row + k * t.term;
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) {
        const MT_VECTOR factor = some < MT_LANES ? MT_SOME_B(by, some) : MT_GET_B(by + v * MT_LANES);
#pragma GCC unroll 8
        for (int m = 0; m < MT_M; ++m) {
          const MT_IMAGE* const at = from + m * s.place + v * MT_LANES;
          sum[m][v] += (some < MT_LANES ? MT_SOME_A(at, some) : MT_GET_A(at)) * factor;
        }
      }
    }
#pragma GCC unroll 8
  for (int m = 0; m < MT_M; ++m)
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      if (some < MT_LANES)
        memcpy(sums + m * pitch, &sum[m][v], some * sizeof(MT_SUM));
      else
        MT_PUT(sums + m * pitch + v * MT_LANES, sum[m][v]);
    }
}

// sums[m * pitch + i] for i < count: over r < rows and k < terms, x[m * place + r * row + k * term + i] times w[r * row + k * term + i], with steps of
// their own. The last vector begins earlier where channels are no whole number of these.
MT_INLINE void MT_NAME(const MT_IMAGE* x, mt_window_steps s, const MT_FACTOR* w, mt_window_steps t, idx rows, idx terms, idx count, MT_SUM* sums,
                       idx pitch) {
  idx i = 0;
  for (; i + MT_N * MT_LANES <= count; i += MT_N * MT_LANES)
    MT_JOIN(MT_NAME, _vectors)(x + i, s, w + i, t, rows, terms, sums + i, pitch, MT_N, MT_LANES);
  for (; i < count && count >= MT_LANES; i += MT_LANES) {
    const idx at = mt_min_idx(i, count - MT_LANES);
    MT_JOIN(MT_NAME, _vectors)(x + at, s, w + at, t, rows, terms, sums + at, pitch, 1, MT_LANES);
  }
  if (i < count) MT_JOIN(MT_NAME, _vectors)(x, s, w, t, rows, terms, sums, pitch, 1, count);
}

#undef MT_VECTOR
#undef MT_LANES
#undef MT_IMAGE
#undef MT_FACTOR
#undef MT_SUM
#undef MT_GET_A
#undef MT_GET_B
#undef MT_SOME_A
#undef MT_SOME_B
#undef MT_PUT
#include "cpu/device/template_end.h"
