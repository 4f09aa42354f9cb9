// A block of a matrix product whose right operand is a panel of words (words.h), by the processor's tiles or, without these, by vectors.
// A template: include it once for each set of
//   MT_NAME     the function that it defines
//   MT_M, MT_N  most rows, and 32 columns
//   MT_C        type of the sums: f32, or i32
//   MT_A, MT_B  types of the left operand in memory and in the panel: bf16, and f32 sums; i8 or u8
#include "cpu/device/words.h"

#define MT_LEFT MT_JOIN(MT_TYPE_, MT_A)
#define MT_SUM MT_JOIN(MT_SUM_, MT_C)
#define MT_SUMS MT_JOIN(mt_, MT_C)
#define MT_SUM_f32 float
#define MT_SUM_i32 int32_t
#define MT_PAIR(x, A, B) MT_PAIR_(x, A, B)
#define MT_PAIR_(x, A, B) x##A##_##B
#define MT_ADD MT_PAIR(mt_add_, MT_A, MT_B)
#define MT_VECTORS (32 * 4 / MT_VECTOR_BYTES)  // of a line of sums
#define MT_AT_ONCE (MT_VECTOR_BYTES == 64 ? 8 : 4)  // lines whose sums registers hold

#if MT_TILES
#define MT_DOT MT_PAIR(MT_DOT_, MT_A, MT_B)
#define MT_DOT_bf16_bf16 _tile_dpbf16ps
#define MT_DOT_i8_i8 _tile_dpbssd
#define MT_DOT_i8_u8 _tile_dpbsud
#define MT_DOT_u8_i8 _tile_dpbusd
#define MT_DOT_u8_u8 _tile_dpbuud
// 64 bytes along k. a: the first line, and `pitch` bytes to the next. both: whether there are lines beyond 16.
MT_INLINE void MT_JOIN(MT_NAME, _step)(const char* a, size_t pitch, const char* panel, bool both) {
  _tile_loadd(4, a, pitch);
  _tile_loadd(6, panel, 64);
  _tile_loadd(7, panel + MT_TILE_BYTES, 64);
  MT_DOT(0, 4, 6);
  MT_DOT(1, 4, 7);
  if (both) {
    _tile_loadd(5, a + 16 * pitch, pitch);
    MT_DOT(2, 5, 6);
    MT_DOT(3, 5, 7);
  }
}

MT_INLINE void MT_JOIN(MT_NAME, _block)(const char* a, size_t pitch, const char* last, const char* panel, idx steps, char* c,
                                               size_t down, bool first, bool both) {
  __asm__ volatile("" ::: "memory");  // GCC's loads of tiles do not say that they read memory
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
  } else {
    _tile_loadd(0, c, down);
    _tile_loadd(1, c + 64, down);
  }
  if (both && first) {
    _tile_zero(2);
    _tile_zero(3);
  } else if (both) {
    _tile_loadd(2, c + 16 * down, down);
    _tile_loadd(3, c + 16 * down + 64, down);
  }
  for (idx s = 0; s < steps; ++s, a += 64, panel += 2 * MT_TILE_BYTES) MT_JOIN(MT_NAME, _step)(a, pitch, panel, both);
  if (last) MT_JOIN(MT_NAME, _step)(last, 64, panel, both);
  _tile_stored(0, c, down);
  _tile_stored(1, c + 64, down);
  if (both) {
    _tile_stored(2, c + 16 * down, down);
    _tile_stored(3, c + 16 * down + 64, down);
  }
}
#else
// So many words of a few lines.
MT_INLINE void MT_JOIN(MT_NAME, _lines)(const char* const a[MT_AT_ONCE], const char* panel, idx words,
                                               MT_SUMS sum[MT_AT_ONCE][MT_VECTORS]) {
  for (idx w = 0; w < words; ++w) {
    mt_u32 y[MT_VECTORS];
#pragma GCC unroll 8
    for (int j = 0; j < MT_VECTORS; ++j) {
      const int column = j * (MT_VECTOR_BYTES / 4);
      memcpy(&y[j], panel + w / 16 * 2 * MT_TILE_BYTES + column / 16 * MT_TILE_BYTES + w % 16 * 64 + column % 16 * 4, sizeof y[j]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < MT_AT_ONCE; ++i) {
      uint32_t x;
      memcpy(&x, a[i] + w * MT_WORD, MT_WORD);
#pragma GCC unroll 8
      for (int j = 0; j < MT_VECTORS; ++j) sum[i][j] = MT_ADD(sum[i][j], x, y[j]);
    }
  }
}
#endif

// c[i][j] = (first ? 0 : c[i][j]) + sum over k of a[i * pitch + k] times the panel's column j at k, for i < lines <= MT_M; pitch and ldc in elements.
static __attribute__((noinline)) void MT_NAME(const MT_LEFT* a, idx pitch, idx lines, const void* panel, idx k, MT_SUM* c, idx ldc,
                                              bool first) {
  enum { bytes = (int)sizeof(MT_LEFT) };
  const idx steps = k * bytes / 64, over = k * bytes % 64;
  const char* at = (const char*)a;
  _Alignas(64) char rest[MT_PANEL_COLUMNS * 64];  // what is left of each line, and zeros
  if (over) {
    memset(rest, 0, sizeof rest);
    for (idx i = 0; i < lines; ++i) memcpy(rest + 64 * i, at + (i * (ptrdiff_t)pitch * bytes + steps * 64), (size_t)over);
  }
#if MT_TILES
  if (lines < MT_PANEL_COLUMNS) mt_shape_tiles(lines);
  if (lines > 16)
    MT_JOIN(MT_NAME, _block)(at, (size_t)pitch * bytes, over ? rest : 0, panel, steps, (char*)c, (size_t)ldc * 4, first, true);
  else
    MT_JOIN(MT_NAME, _block)(at, (size_t)pitch * bytes, over ? rest : 0, panel, steps, (char*)c, (size_t)ldc * 4, first, false);
  if (lines < MT_PANEL_COLUMNS) mt_shape_tiles(MT_PANEL_COLUMNS);
#else
  for (idx i = 0; i < lines; i += MT_AT_ONCE) {
    MT_SUMS sum[MT_AT_ONCE][MT_VECTORS];
    const char *in[MT_AT_ONCE], *end[MT_AT_ONCE];
    for (int r = 0; r < MT_AT_ONCE; ++r) {
      const idx line = i + r < lines ? i + r : lines - 1;
      in[r] = at + line * (ptrdiff_t)pitch * bytes, end[r] = rest + 64 * line;
      for (int j = 0; j < MT_VECTORS; ++j) {
        sum[r][j] = (MT_SUMS){0};
        if (!first) memcpy(&sum[r][j], c + line * ldc + j * (MT_VECTOR_BYTES / 4), sizeof sum[r][j]);
      }
    }
    MT_JOIN(MT_NAME, _lines)(in, panel, steps * 16, sum);
    if (over) MT_JOIN(MT_NAME, _lines)(end, (const char*)panel + steps * 2 * MT_TILE_BYTES, 16, sum);
    for (int r = 0; r < MT_AT_ONCE && i + r < lines; ++r)
      for (int j = 0; j < MT_VECTORS; ++j) memcpy(c + (i + r) * ldc + j * (MT_VECTOR_BYTES / 4), &sum[r][j], sizeof sum[r][j]);
  }
#endif
}

#undef MT_LEFT
#undef MT_SUM
#undef MT_SUMS
#undef MT_ADD
#undef MT_VECTORS
#undef MT_AT_ONCE
#undef MT_SUM_f32
#undef MT_SUM_i32
#undef MT_PAIR
#undef MT_PAIR_
#undef MT_DOT
#undef MT_DOT_bf16_bf16
#undef MT_DOT_i8_i8
#undef MT_DOT_i8_u8
#undef MT_DOT_u8_i8
#undef MT_DOT_u8_u8
#include "cpu/device/template_end.h"
