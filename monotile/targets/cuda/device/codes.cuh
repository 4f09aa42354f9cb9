// Codes of a few bits, two at a time: code i of a word of 4 bytes, and the one half a word behind it; of bytes, two neighbours.
//
// A code becomes the low bits of a float that is a power of two, from which that is then subtracted: 1024 in float16, 128 in bfloat16, 2^23 in float32.
// What it stands for is SCALE * (code ^ FLIP) + OFFSET.
#pragma once
#include "cuda/device/float8.cuh"
#include "cuda/device/ptx/sm_90a.cuh"
#include "cuda/device/types.cuh"

namespace mt {

// The bits of x / 2^down as T, which holds it exactly, in both halves of a word.
template <class T>
__host__ __device__ constexpr u32 both_of(int x, int down = 0) {
  u32 size = x < 0 ? -x : x, power = 0;
  while (size >> (power + 1)) ++power;
  const int digits = same<T, f16> ? 10 : 7, bias = same<T, f16> ? 15 : 127;
  const u32 rest = int(power) > digits ? size >> (int(power) - digits) : size << (digits - int(power));
  const u32 bits = size == 0 ? 0 : (x < 0 ? 0x8000u : 0u) | (power + bias - down) << digits | (rest & ((1u << digits) - 1));
  return bits * 0x10001u;
}

template <class T>
__device__ __forceinline__ u32 both(float x) {
  return ptx::pair_of<T>(x, x);
}

template <int BITS, int FLIP, int SCALE, int OFFSET>
struct CodePair {
  u32 word;
  int i;
  // Which bits of the word.
  __device__ __forceinline__ u32 bits(int second) const {
    if constexpr (BITS == 8)
      return word >> (16 * i + 8 * second) & 255;
    else
      return word >> (BITS * i + 16 * second) & ((1u << BITS) - 1);
  }
  __device__ __forceinline__ int integer(int second) const { return SCALE * int(bits(second) ^ FLIP) + OFFSET; }
  __device__ __forceinline__ float number(int second) const {
    constexpr u32 MAGIC = 0x4b000000;
    const float x = __uint_as_float((bits(second) ^ FLIP) | MAGIC);
    if constexpr (SCALE == 1)
      return x - float(8388608 - OFFSET);
    else
      return float(SCALE) * (x - 8388608.0f) + float(OFFSET);
  }
};

template <int BITS, int FLIP, int SCALE, int OFFSET>
__device__ __forceinline__ CodePair<BITS, FLIP, SCALE, OFFSET> codes(u32 word, int i) {
  return {word, i};
}

// What pair I stands for, as T, which holds all of it. Where the mantissa has room for several codes behind each other, only each first one is shifted: the
// others are taken as they lie, so many times too large.
template <class T, int I, int BITS, int FLIP, int SCALE, int OFFSET>
__device__ __forceinline__ u32 code_pair(u32 word) {
  constexpr bool HALF = same<T, f16>;
  constexpr u32 MAGIC = HALF ? 0x64006400 : 0x43004300;
  constexpr int POWER = HALF ? 1024 : 128, ROOM = (HALF ? 10 : 7) / BITS, FIELDS = ROOM >= 8 ? 8 : ROOM >= 4 ? 4 : ROOM >= 2 ? 2 : 1;
  if constexpr (BITS == 8 && !HALF && SCALE == 1 && OFFSET == -128) {
    // 128 and the low bits, less 256, or 128 where the high bit is set.
    const u32 x = ptx::bytes_of(word, 0, I == 0 ? 0x4140 : 0x4342);
    const u32 low = ptx::and_xor(x, 0x007f007f, (0x4300 ^ (FLIP & 0x7f)) * 0x10001u);
    return ptx::sub_x2<T>(low, ptx::and_xor(x, 0x00800080, (0x4380 ^ (FLIP & 0x80)) * 0x10001u));
  } else if constexpr (BITS == 8 && !HALF) {
    const auto two = codes<BITS, FLIP, SCALE, OFFSET>(word, I);
    return ptx::pair_of<T>(two.number(0), two.number(1));
  } else {
    constexpr int LEFT = BITS == 8 ? 0 : BITS * (I % FIELDS), RIGHT = BITS * (I / FIELDS * FIELDS);
    constexpr u32 MASK = ((1u << BITS) - 1) * 0x10001u << LEFT, BASE = MAGIC ^ (FLIP * 0x10001u << LEFT);
    constexpr int OWN = OFFSET - (POWER * SCALE >> LEFT);  // what is then added
    constexpr u32 FIRST = both_of<T>(OWN), TIMES = both_of<T>(SCALE, LEFT);
    static_assert((POWER * SCALE >> LEFT) << LEFT == POWER * SCALE, "the power is no multiple of the place");
    u32 x;
    if constexpr (BITS == 8)
      x = ptx::bytes_of(word ^ FLIP * 0x1010101u, MAGIC, I == 0 ? 0x5150 : 0x5352);
    else
      x = ptx::and_xor(word >> RIGHT, MASK, BASE);
    if constexpr (SCALE == 1 && LEFT == 0) return ptx::add_x2<T>(x, FIRST);
    if constexpr (OWN < -2 * POWER || OWN > 2 * POWER)  // which T may not hold
      return ptx::fma_x2<T>(ptx::sub_x2<T>(x, both_of<T>(POWER)), TIMES, both_of<T>(OFFSET));
    return ptx::fma_x2<T>(x, TIMES, FIRST);
  }
}

// Floats of 4 bits: sign, two of exponent, one of mantissa.
struct f4e2m1 {};

// The same of small floats, of which each 16-bit float holds all.
template <class F>
struct FloatPair {
  u32 word;
  int i;
  __device__ __forceinline__ float number(int second) const { return widen(F{u8(word >> (16 * i + 8 * second))}); }
};
// Moved to where a float has them, they are so many times too small; those without exponent are subnormal there too.
template <>
struct FloatPair<f4e2m1> {
  u32 word;
  int i;
  __device__ __forceinline__ float number(int second) const {
    const u32 bits = word >> (4 * i + 16 * second);
    return __uint_as_float((bits & 8) << 28 | (bits & 7) << 22) * 0x1p126f;
  }
};
template <class F>
__device__ __forceinline__ FloatPair<F> codes(u32 word, int i) {
  return {word, i};
}
template <class T, int I, class F>
__device__ __forceinline__ u32 code_pair(u32 word) {
  if constexpr (same<F, f4e2m1>) {
    constexpr int DIGITS = same<T, f16> ? 10 : 7, LEFT = DIGITS - 1 - 4 * I, POWER = same<T, f16> ? 14 : 126;
    const u32 sign = word << (12 - 4 * I) & 0x80008000;
    const u32 bits = ptx::and_xor(LEFT < 0 ? word >> (LEFT < 0 ? -LEFT : 0) : word << (LEFT < 0 ? 0 : LEFT), 0x00070007 << (DIGITS - 1), sign);
    return ptx::mul_x2<T>(bits, ((POWER + (same<T, f16> ? 15 : 127)) << DIGITS) * 0x10001u);
  }
  if constexpr (same<T, f16> && same<F, f8e5m2>) return ptx::bytes_of(word, 0, I == 0 ? 0x1404 : 0x3424);
#ifdef MT_HAS_FLOAT8
  if constexpr (same<T, f16> && same<F, f8e4m3>) return ptx::f8e4m3x2_to_f16x2(u16(word >> 16 * I));
#endif
  if constexpr (same<T, f16>) {
    const auto two = codes<F>(word, I);
    return ptx::pair_of<T>(two.number(0), two.number(1));
  } else {
    const u32 halves = code_pair<f16, I, F>(word);
    return ptx::pair_of<T>(ptx::f16_to_f32(u16(halves)), ptx::f16_to_f32(u16(halves >> 16)));
  }
}

}  // namespace mt
