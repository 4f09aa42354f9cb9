// Loads and stores of packs, and the choice of how a global load may be cached.
//
// `load_constant` goes through the read-only path: for inputs and weights alone, never for what this launch writes.
// `load` and `store` are plain: see barrier.cuh for why they see what other blocks wrote.
#pragma once
#include "cuda/types.cuh"

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

template <int BYTES>
__device__ __forceinline__ void load_constant_bytes(void* to, const void* from) {
  if constexpr (BYTES >= 16) {
#pragma unroll
    for (int i = 0; i < BYTES / 16; ++i) {
      uint4& y = reinterpret_cast<uint4*>(to)[i];
      asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
          : "=r"(y.x), "=r"(y.y), "=r"(y.z), "=r"(y.w)
          : "l"(__cvta_generic_to_global(static_cast<const uint4*>(from) + i)));
    }
  } else if constexpr (BYTES == 8) {
    uint2& y = *static_cast<uint2*>(to);
    asm("ld.global.nc.v2.u32 {%0, %1}, [%2];"
        : "=r"(y.x), "=r"(y.y)
        : "l"(__cvta_generic_to_global(from)));
  } else if constexpr (BYTES == 4) {
    asm("ld.global.nc.u32 %0, [%1];"
        : "=r"(*static_cast<u32*>(to))
        : "l"(__cvta_generic_to_global(from)));
  } else if constexpr (BYTES == 2) {
    asm("ld.global.nc.u16 %0, [%1];"
        : "=h"(*static_cast<u16*>(to))
        : "l"(__cvta_generic_to_global(from)));
  } else {
    static_assert(BYTES == 1, "a load moves 1, 2, 4, 8 or a multiple of 16 bytes");
    u32 y;
    asm("ld.global.nc.u8 %0, [%1];" : "=r"(y) : "l"(__cvta_generic_to_global(from)));
    *static_cast<u8*>(to) = u8(y);
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

}  // namespace mt
