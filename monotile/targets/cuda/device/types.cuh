// Element types, packs of neighbours, conversions. No toolkit header is needed by anything in this library.
#pragma once
#include "cuda/device/ptx/common.cuh"

namespace mt {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;
using f32 = float;
using f64 = double;

// Storage of the 16-bit floats. Arithmetic runs in float.
struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};

template <class T, int N>
struct alignas(sizeof(T) * N <= 16 ? sizeof(T) * N : 16) Pack {
  static_assert((N & (N - 1)) == 0, "a pack holds a power of two of elements");
  T value[N];
  __device__ __forceinline__ T& operator[](int i) { return value[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return value[i]; }
};

// Packs that a thread keeps in registers through a loop. They are indexed by literals only.
template <class T, int WIDTH, int COUNT>
struct Held {
  Pack<T, WIDTH> value[COUNT];
};

// A prefetched value, kept as whole words until its first use. nvcc 13.0 unpacks narrower elements where they are loaded, which is
// where the thread would then wait for the load.
template <class T>
struct Words {
  u32 value[(sizeof(T) + 3) / 4];
  __device__ __forceinline__ T whole() const {
    Words now;
#pragma unroll
    for (int i = 0; i < int(sizeof(value) / 4); ++i) now.value[i] = ptx::opaque(value[i]);
    T out;
    memcpy(&out, now.value, sizeof(T));
    return out;
  }
};

template <class T>
__device__ __forceinline__ Words<T> words(const T& x) {
  Words<T> out{};
  memcpy(out.value, &x, sizeof(T));
  return out;
}

template <class T>
__device__ __forceinline__ u32 any_bits(const T& x) {
  return u32(x);
}
template <class T>
__device__ __forceinline__ u32 any_bits(const Words<T>& x) {
  u32 all = 0;
#pragma unroll
  for (int i = 0; i < int(sizeof(x.value) / 4); ++i) all |= x.value[i];
  return all;
}

// Asks for all of `values` before any of them is used. ptxas moves a load down to its use, where a thread would wait for one after the
// other, but none behind a branch that depends on it; what happens behind this one changes nothing.
template <class T, int COUNT>
__device__ __forceinline__ void ask_together(const T (&values)[COUNT]) {
  u32 all = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) all |= any_bits(values[i]);
  if (ptx::recompute(all) == 0xa5c39671u) ptx::pause();
}

template <class A, class B>
inline constexpr bool same = false;
template <class A>
inline constexpr bool same<A, A> = true;

template <class T>
inline constexpr bool is_float16 = same<T, f16> || same<T, bf16>;
template <class T>
inline constexpr bool is_integer8 = same<T, i8> || same<T, u8>;

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }
__host__ __device__ constexpr int min_of(int a, int b) { return a < b ? a : b; }
// Whether 0 <= x < count, for a count that is not negative.
template <class I>
__host__ __device__ constexpr bool within(I x, I count) {
  if constexpr (sizeof(I) == 4)
    return u32(x) < u32(count);
  else
    return u64(x) < u64(count);
}
__host__ __device__ constexpr bool is_power_of_two(int a) { return a > 0 && (a & (a - 1)) == 0; }

__device__ __forceinline__ float widen(f16 x) { return ptx::f16_to_f32(x.bits); }
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
template <class T>
__device__ __forceinline__ T widen(T x) {
  return x;
}

// Round to nearest even. float64 goes to bfloat16 through float32, as in PyTorch.
__device__ __forceinline__ f16 to_f16(float x) { return {ptx::f32_to_f16(x)}; }
__device__ __forceinline__ bf16 to_bf16(float x) { return {ptx::f32_to_bf16(x)}; }

template <class To, class From>
struct Convert {
  static __device__ __forceinline__ To apply(From x) { return To(x); }
};
template <class From>
struct Convert<f16, From> {
  static __device__ __forceinline__ f16 apply(From x) { return to_f16(float(widen(x))); }
};
template <class From>
struct Convert<bf16, From> {
  static __device__ __forceinline__ bf16 apply(From x) { return to_bf16(float(widen(x))); }
};
template <class From>
struct Convert<bool, From> {
  static __device__ __forceinline__ bool apply(From x) { return widen(x) != 0; }
};
template <class To>
struct Convert<To, f16> {
  static __device__ __forceinline__ To apply(f16 x) { return To(widen(x)); }
};
template <class To>
struct Convert<To, bf16> {
  static __device__ __forceinline__ To apply(bf16 x) { return To(widen(x)); }
};
template <>
struct Convert<f16, f16> {
  static __device__ __forceinline__ f16 apply(f16 x) { return x; }
};
template <>
struct Convert<bf16, bf16> {
  static __device__ __forceinline__ bf16 apply(bf16 x) { return x; }
};
template <>
struct Convert<f16, bf16> {
  static __device__ __forceinline__ f16 apply(bf16 x) { return to_f16(widen(x)); }
};
template <>
struct Convert<bf16, f16> {
  static __device__ __forceinline__ bf16 apply(f16 x) { return to_bf16(widen(x)); }
};
template <>
struct Convert<bool, f16> {
  static __device__ __forceinline__ bool apply(f16 x) { return widen(x) != 0; }
};
template <>
struct Convert<bool, bf16> {
  static __device__ __forceinline__ bool apply(bf16 x) { return widen(x) != 0; }
};

template <class To, class From>
__device__ __forceinline__ To cast(From x) {
  return Convert<To, From>::apply(x);
}

}  // namespace mt
