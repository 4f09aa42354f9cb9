// The host's twin of device/cuda/ptx/sm_90a.cuh: a product is done when it is issued.
#pragma once
#include "cuda/types.cuh"

namespace mt::ptx {

inline u64 panel_descriptor(u32 address) {
  if (address % 1024 >= 128 || address % 32) emulator::fail("misaligned panel");
  return address;
}
inline void fence_async() {}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
inline void wgmma_wait() {}

template <class T, int TN>
void wgmma(float (&c)[TN][4], u64 a, u64 b) {
  auto at = [](u64 panel, int line, int k) {
    u32 address = u32(panel) + line / 8 * 1024 + line % 8 * 128 + k * 2;
    address ^= (address >> 7 & 7) << 4;
    return widen(T{*reinterpret_cast<u16*>(emulator::shared(address))});
  };
  int lane = int(emulator::lane()), warp = int(threadIdx.x) / 32 % 4;
  for (int j = 0; j < TN; ++j)
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 16; ++k)
        c[j][i] += at(a, warp * 16 + lane / 4 + i / 2 * 8, k) * at(b, j * 8 + lane % 4 * 2 + i % 2, k);
}

}  // namespace mt::ptx
