// Loads and stores of packs.
//
// `load_constant` goes through the read-only cache: it is for inputs and weights only, never for what this launch writes. `load`
// and `store` are plain accesses: barrier.cuh says why they see what other blocks wrote.
#pragma once
#include "cuda/device/types.cuh"

namespace mt {

template <int N, class T>
__device__ __forceinline__ Pack<T, N> load(const T* p) {
  constexpr int BYTES = int(sizeof(T)) * N;
  Pack<T, N> out;
  if constexpr (BYTES <= 16) {
    out = *reinterpret_cast<const Pack<T, N>*>(p);
  } else {
#pragma unroll
    for (int i = 0; i < BYTES / 16; ++i)
      reinterpret_cast<uint4*>(&out)[i] = reinterpret_cast<const uint4*>(p)[i];
  }
  return out;
}

// The same from global memory, as whole words and where it stands: of many loads from one base, some plain ones are taken apart.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_now(const T* p) {
  constexpr int BYTES = int(sizeof(T)) * N;
  Pack<T, N> out;
  if constexpr (BYTES == 8) {
    *reinterpret_cast<uint2*>(&out) = ptx::load_now_8(p);
  } else if constexpr (BYTES % 16 == 0) {
#pragma unroll
    for (int i = 0; i < BYTES / 16; ++i)
      reinterpret_cast<uint4*>(&out)[i] = ptx::load_now_16(reinterpret_cast<const uint4*>(p) + i);
  } else {
    out = load<N>(p);
  }
  return out;
}

template <int N, class T>
__device__ __forceinline__ void store(T* p, const Pack<T, N>& x) {
  constexpr int BYTES = int(sizeof(T)) * N;
  if constexpr (BYTES <= 16) {
    *reinterpret_cast<Pack<T, N>*>(p) = x;
  } else {
#pragma unroll
    for (int i = 0; i < BYTES / 16; ++i)
      reinterpret_cast<uint4*>(p)[i] = reinterpret_cast<const uint4*>(&x)[i];
  }
}

// N times the one element.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> repeated(const Pack<T, 1>& x) {
  Pack<T, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = x[0];
  return out;
}

// A predicated store to global memory. With a branch the compiler would skip the whole computation of the value, and the steps of an
// epilogue could not hide each other's latency.
template <int N, class T>
__device__ __forceinline__ void store_if(bool predicate, T* p, const Pack<T, N>& x) {
  constexpr int BYTES = int(sizeof(T)) * N;
  if constexpr (BYTES == 4) {
    ptx::store_if(predicate, p, *reinterpret_cast<const u32*>(&x));
  } else if constexpr (BYTES == 8) {
    ptx::store_if(predicate, p, *reinterpret_cast<const uint2*>(&x));
  } else if constexpr (BYTES % 16 == 0) {
#pragma unroll
    for (int i = 0; i < BYTES / 16; ++i)
      ptx::store_if(predicate, reinterpret_cast<uint4*>(p) + i, reinterpret_cast<const uint4*>(&x)[i]);
  } else if (predicate) {
    store(p, x);
  }
}

template <int BYTES>
__device__ __forceinline__ void load_constant_bytes(void* to, const void* from) {
  if constexpr (BYTES == 1) {
    *static_cast<u8*>(to) = ptx::load_constant_1(from);
  } else if constexpr (BYTES == 2) {
    *static_cast<u16*>(to) = ptx::load_constant_2(from);
  } else if constexpr (BYTES == 4) {
    *static_cast<u32*>(to) = ptx::load_constant_4(from);
  } else if constexpr (BYTES == 8) {
    *static_cast<uint2*>(to) = ptx::load_constant_8(from);
  } else {
    static_assert(BYTES % 16 == 0, "a load moves 1, 2, 4, 8 or a multiple of 16 bytes");
#pragma unroll
    for (int i = 0; i < BYTES / 16; ++i)
      static_cast<uint4*>(to)[i] = ptx::load_constant_16(static_cast<const uint4*>(from) + i);
  }
}

template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_constant(const T* p) {
  Pack<T, N> out;
  load_constant_bytes<int(sizeof(T)) * N>(&out, p);
  return out;
}
template <class T>
__device__ __forceinline__ T load_constant(const T* p) {
  T out;
  load_constant_bytes<int(sizeof(T))>(&out, p);
  return out;
}

// Unaligned packs, loaded element by element.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_each(const T* p) {
  Pack<T, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = p[i];
  return out;
}
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_constant_each(const T* p) {
  Pack<T, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = load_constant(p + i);
  return out;
}

// The words that begin `skip` bytes into `low` and end in `high`.
template <int WORDS>
__device__ __forceinline__ Pack<u32, WORDS> between(const Pack<u32, WORDS>& low, const Pack<u32, WORDS>& high, u32 skip) {
  u32 words[2 * WORDS];
#pragma unroll
  for (int i = 0; i < WORDS; ++i) words[i] = low[i], words[WORDS + i] = high[i];
#pragma unroll
  for (int step = WORDS / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i + step < 2 * WORDS; ++i) words[i] = skip & (4 * step) ? words[i + step] : words[i];
  }
  Pack<u32, WORDS> out;
#pragma unroll
  for (int i = 0; i < WORDS; ++i) out[i] = __funnelshift_r(words[i], words[i + 1], 8 * skip);
  return out;
}

// N neighbours that need not be aligned, as the two aligned packs round them.
template <class T, int N>
struct Unaligned {
  static constexpr int BYTES = int(sizeof(T)) * N, WORDS = BYTES / 4;
  static_assert(BYTES == 8 || BYTES == 16, "Packs round others are of 8 or of 16 bytes.");
  Pack<u32, WORDS> low, high;
  u32 skip;
};
template <class T, int N>
__device__ __forceinline__ Pack<T, N> joined(const Unaligned<T, N>& x) {
  const Pack<u32, Unaligned<T, N>::WORDS> out = between(x.low, x.high, x.skip);
  return *reinterpret_cast<const Pack<T, N>*>(&out);
}

// The same with zeros for those that are not there, of which `count` are.
template <class T, int N>
__device__ __forceinline__ Pack<T, N> joined(const Unaligned<T, N>& x, int count) {
  Pack<T, N> out = joined(x);
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i >= count) out[i] = T{};
  return out;
}

// Those from p on, of which `count` are there, if that is less than N: the others are not defined. An element that is there lies in each
// pack that is loaded, and there is one before p if there is none from p on. Without branches, so that several loads are under way at once.
template <int N, class T, class Load>
__device__ __forceinline__ Unaligned<T, N> load_round(const T* p, int count, const Load& load_pack) {
  constexpr int BYTES = Unaligned<T, N>::BYTES;
  const T* const start = count > 0 ? p : p + (count - 1);
  const u32 skip = u32(reinterpret_cast<u64>(start)) % u32(BYTES);
  const u32* const low = reinterpret_cast<const u32*>(reinterpret_cast<const char*>(start) - skip);
  const bool beyond = skip && count > (BYTES - int(skip)) / int(sizeof(T));
  return {load_pack(low), load_pack(beyond ? low + BYTES / 4 : low), skip};
}
template <int N, class T>
__device__ __forceinline__ Unaligned<T, N> load_unaligned(const T* p, int count) {
  constexpr int WORDS = Unaligned<T, N>::WORDS;
  return load_round<N>(p, count, [](const u32* q) {
    Pack<u32, WORDS> out;
    if constexpr (WORDS == 2)
      *reinterpret_cast<uint2*>(&out) = ptx::load_now_8(q);
    else
      *reinterpret_cast<uint4*>(&out) = ptx::load_now_16(q);
    return out;
  });
}
template <int N, class T>
__device__ __forceinline__ Unaligned<T, N> load_constant_unaligned(const T* p, int count) {
  return load_round<N>(p, count, [](const u32* q) { return load_constant<Unaligned<T, N>::WORDS>(q); });
}

}  // namespace mt
