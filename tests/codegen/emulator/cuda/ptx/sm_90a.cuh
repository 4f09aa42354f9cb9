// The host's twin of device/cuda/ptx/sm_90a.cuh: a product is done when it is issued.
#pragma once
#include "cuda/types.cuh"

namespace mt::ptx {

inline u32 panel_address(u32 address) {
  if (address % 1024) emulator::fail("misaligned panel");
  return address;
}
inline u64 panel_descriptor(u32 panel, u32 distance) {
  if (distance % 32) emulator::fail("misaligned distance along a panel");
  return panel + distance;
}
inline void fence_async() {}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
inline void wgmma_wait() {}

template <class T, int TN, bool B_K>
void wgmma(float (&c)[TN][4], u64 a, u64 b) {
  auto at = [](u64 panel, int line, int k) {
    u32 address = u32(panel) + line / 8 * 1024 + line % 8 * 128 + k * 2;
    address ^= (address >> 7 & 7) << 4;
    return widen(T{*reinterpret_cast<u16*>(emulator::shared(address))});
  };
  int lane = int(emulator::lane()), warp = int(threadIdx.x) / 32 % 4;
  for (int j = 0; j < TN; ++j)
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 16; ++k) {
        int row = warp * 16 + lane / 4 + i / 2 * 8, column = j * 8 + lane % 4 * 2 + i % 2;
        c[j][i] += at(a, row, k) * (B_K ? at(b, column, k) : at(b, k, column));
      }
}

}  // namespace mt::ptx
