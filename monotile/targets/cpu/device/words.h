// Panels of 32-bit words, each of neighbours along k of one column: two of 16 bits, four of 8 (x86's VNNI order). A panel has 32 columns.
// 64 bytes along k are two tiles, of 16 columns each: 16 rows of words, one for each column. What is beyond the last k is zero.
#pragma once
#include "cpu/device/bytes.h"

// MT_TILES: whether the processor's tiles (AMX) multiply; MT_NO_TILES, that vectors do. A process has to ask for them first (build.py).
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && !defined(MT_NO_TILES)
#define MT_TILES 1
#include <immintrin.h>
#else
#define MT_TILES 0
#endif

enum { MT_WORD = 4, MT_PANEL_COLUMNS = 32, MT_TILE_LINES = 16, MT_TILE_BYTES = 1024 };
enum { MT_ROWS_AHEAD = 32 };  // that are asked for, as neighbours along k are far apart

#if MT_TILES
// Tiles 0 to 3 are sums: rows up to 16 and beyond, of the first 16 columns and the others; 4 and 5 the left operand's, 6 and 7 a panel's.
MT_INLINE void mt_shape_tiles(idx lines) {
  struct {
    uint8_t palette, start, none[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } shape = {.palette = 1};
  const uint8_t first = (uint8_t)(lines < 16 ? lines : 16), second = (uint8_t)(lines > 16 ? lines - 16 : 16);
  const uint8_t rows[8] = {first, first, second, second, first, second, 16, 16};
  for (int t = 0; t < 8; ++t) shape.row_bytes[t] = 64, shape.rows[t] = rows[t];
  __asm__ volatile("ldtilecfg %0" ::"m"(shape));  // the intrinsic of GCC 12 says that it reads 8 bytes
}
MT_INLINE void mt_begin_words(void) { mt_shape_tiles(MT_PANEL_COLUMNS); }
MT_INLINE void mt_end_words(void) { _tile_release(); }
#else
MT_INLINE void mt_begin_words(void) {}
MT_INLINE void mt_end_words(void) {}
#endif

// Each sum plus the products of the neighbours in a word of the left operand, the same for all lanes, and in words of the right one.
MT_INLINE mt_f32 mt_add_bf16_bf16(mt_f32 sum, uint32_t x, mt_u32 y) {
  sum += mt_float(x << 16) * (mt_f32)(y << 16);
  return sum + mt_float(x & 0xffff0000u) * (mt_f32)(y & 0xffff0000u);
}
#define MT_SIGN_i8(word) ((int32_t)(word) >> 24)
#define MT_SIGN_u8(word) ((int32_t)((word) >> 24))
#define MT_ADD_BYTES(A, B)                                                                         \
  MT_INLINE mt_i32 mt_add_##A##_##B(mt_i32 sum, uint32_t x, mt_u32 y) {                            \
    for (int shift = 24; shift >= 0; shift -= 8)                                                   \
      sum += MT_SIGN_##A(x << shift) * MT_WIDE_##B(y << shift);                                    \
    return sum;                                                                                    \
  }
#define MT_WIDE_i8(words) ((mt_i32)(words) >> 24)
#define MT_WIDE_u8(words) ((mt_i32)((words) >> 24))
MT_ADD_BYTES(i8, i8)
MT_ADD_BYTES(i8, u8)
MT_ADD_BYTES(u8, i8)
MT_ADD_BYTES(u8, u8)

// Up to 64 bytes.
MT_INLINE void mt_copy_some(char* to, const char* from, idx bytes) {
#if defined(__AVX512BW__)
  const __mmask64 taken = bytes < 64 ? ((__mmask64)1 << bytes) - 1 : ~(__mmask64)0;
  _mm512_mask_storeu_epi8(to, taken, _mm512_maskz_loadu_epi8(taken, from));
#else
  memcpy(to, from, (size_t)bytes);
#endif
}

// A line of the left operand, of `k` elements: from each i that is a multiple of `run` on so many lie side by side, from `from + steps[i]` on.
#define MT_LINE_OF_RUNS(S, T)                                                                      \
  MT_INLINE void mt_line_of_runs_##S(const T* from, const idx* steps, idx run, idx k, T* line) {   \
    for (idx i = 0; i < k; i += run) {                                                             \
      const char* begin = (const char*)(from + steps[i]);                                          \
      const idx bytes = mt_min_idx(run, k - i) * (idx)sizeof(T);                                   \
      for (idx at = 0; at < bytes; at += 64)                                                       \
        mt_copy_some((char*)(line + i) + at, begin + at, mt_min_idx(64, bytes - at));              \
    }                                                                                              \
  }
MT_LINE_OF_RUNS(bf16, uint16_t)
MT_LINE_OF_RUNS(i8, int8_t)
MT_LINE_OF_RUNS(u8, uint8_t)

// A panel of 32 lines that lie along k, of so many bytes each.
static __attribute__((noinline, unused)) void mt_words_of_lines(const void* const* lines, idx bytes, void* panel) {
  char* to = panel;
  for (idx at = 0; at < bytes; at += 64)
    for (int tile = 0; tile < 2; ++tile, to += MT_TILE_BYTES) {
      const idx left = bytes - at;
      const void* const* from = lines + tile * MT_TILE_LINES;
#if MT_VECTOR_BYTES == 64
      mt_f32 r[16];
      _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i) {
        const char* line = (const char*)from[i] + at;
        r[i] = (mt_f32)(left >= 64 ? mt_get_bytes(line) : mt_get_some_bytes(line, left));
      }
      mt_transpose_f32(r);
      _Pragma("GCC unroll 16") for (int i = 0; i < 16; ++i) memcpy(to + 64 * i, &r[i], 64);
#else
      for (int i = 0; i < MT_TILE_LINES; ++i) {
        uint32_t words[16] = {0};
        memcpy(words, (const char*)from[i] + at, (size_t)(left < 64 ? left : 64));
        for (int w = 0; w < 16; ++w) memcpy(to + 64 * w + MT_WORD * i, &words[w], MT_WORD);
      }
#endif
    }
}

// A panel of up to 32 columns that lie side by side at each k, `pitch` elements from one k to the next.
#define MT_WORDS_OF_COLUMNS(S, T, U)                                                               \
  static __attribute__((noinline, unused)) void mt_words_of_##S(                                   \
      const T* values, idx pitch, idx columns, idx k, uint32_t* panel) {                           \
    enum { each = MT_WORD / (int)sizeof(T), bits = 8 * (int)sizeof(T) };                           \
    static const T none[MT_PANEL_COLUMNS] = {0};                                                   \
    T part[each][MT_PANEL_COLUMNS];                                                                \
    for (idx step = 0; step * 16 * each < k; ++step, panel += 512)                                 \
      for (idx w = 0; w < 16; ++w) {                                                               \
        const T* row[each];                                                                        \
        for (int i = 0; i < each; ++i) {                                                           \
          const idx at = (step * 16 + w) * each + i;                                               \
          row[i] = at < k ? values + at * (ptrdiff_t)pitch : none;                                 \
          if (at + MT_ROWS_AHEAD < k) __builtin_prefetch(row[i] + MT_ROWS_AHEAD * (ptrdiff_t)pitch); \
          if (at < k && columns < MT_PANEL_COLUMNS)                                                \
            row[i] = memcpy(part[i], row[i], (size_t)columns * sizeof(T));                         \
        }                                                                                          \
        for (int c = 0; c < MT_PANEL_COLUMNS; ++c) {                                               \
          uint32_t word = 0;                                                                       \
          _Pragma("GCC unroll 4") for (int i = 0; i < each; ++i) word |= (uint32_t)(U)row[i][c]    \
                                                                         << (i * bits);            \
          panel[c / 16 * 256 + w * 16 + c % 16] = word;                                            \
        }                                                                                          \
      }                                                                                            \
  }
MT_WORDS_OF_COLUMNS(bf16, uint16_t, uint16_t)
MT_WORDS_OF_COLUMNS(i8, int8_t, uint8_t)
MT_WORDS_OF_COLUMNS(u8, uint8_t, uint8_t)

// Columns `column` and on, so many, of a panel: windows of an image that lie side by side. steps: where the elements of a window lie, from `from` on.
#define MT_WORDS_OF_WINDOWS(S, T, U)                                                               \
  static __attribute__((noinline, unused)) void mt_words_of_windows_##S(                           \
      const T* from, const idx* steps, idx column, idx columns, idx k, uint32_t* panel) {          \
    enum { each = MT_WORD / (int)sizeof(T), bits = 8 * (int)sizeof(T) };                           \
    const idx words = (k + 16 * each - 1) / (16 * each) * 16;                                      \
    for (idx w = 0; w < words; ++w)                                                                \
      for (idx c = column; c < column + columns; ++c) {                                            \
        uint32_t word = 0;                                                                         \
        for (idx i = 0; i < each; ++i)                                                             \
          if (each * w + i < k)                                                                    \
            word |= (uint32_t)(U)from[steps[each * w + i] + c - column] << (i * bits);             \
        panel[w / 16 * 512 + c / 16 * 256 + w % 16 * 16 + c % 16] = word;                          \
      }                                                                                            \
  }
MT_WORDS_OF_WINDOWS(i8, int8_t, uint8_t)
MT_WORDS_OF_WINDOWS(u8, uint8_t, uint8_t)
#if defined(__AVX512BW__) && defined(__AVX512VL__)
// Up to 16 words.
MT_INLINE void mt_pair_windows(const uint16_t* a, const uint16_t* b, idx count, uint32_t* words) {
  const __mmask16 taken = (__mmask16)((1u << count) - 1u);
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(taken, a));
  const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(taken, b));
  _mm512_mask_storeu_epi32(words, taken, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}
static __attribute__((noinline, unused)) void mt_words_of_windows_bf16(const uint16_t* from, const idx* steps, idx column,
                                                                        idx columns, idx k, uint32_t* panel) {
  static const uint16_t none[MT_PANEL_COLUMNS] = {0};
  const idx words = (k + 31) / 32 * 16, first = mt_min_idx(columns, column < 16 ? 16 - column : MT_PANEL_COLUMNS - column);
  for (idx w = 0; w < words; ++w) {
    const uint16_t* a = 2 * w < k ? from + steps[2 * w] : none;
    const uint16_t* b = 2 * w + 1 < k ? from + steps[2 * w + 1] : none;
    uint32_t* to = panel + w / 16 * 512 + w % 16 * 16;
    mt_pair_windows(a, b, first, to + column / 16 * 256 + column % 16);
    if (first < columns) mt_pair_windows(a + first, b + first, columns - first, to + 256);
  }
}
#else
MT_WORDS_OF_WINDOWS(bf16, uint16_t, uint16_t)
#endif
