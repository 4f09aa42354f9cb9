// The host's twin of device/cuda/ptx/sm_90a.cuh: a product is done at the wait that covers it or at once.
#pragma once
#include <array>

#include "cuda/device/types.cuh"

namespace mt::ptx {

// Addresses take 18 bits, a block's bytes over 16 the rest.
inline u32 panel_address(u32 address, u32 block = 16) {
  if (address % 1024 || (block != 16 && block % 1024)) emulator::fail("misaligned panel");
  return address | block / 16 << 18;
}
inline u64 panel_descriptor(u32 panel, u32 distance) {
  if (distance % 32) emulator::fail("misaligned distance along a panel");
  return panel + distance;
}
inline u64 narrow_panel_descriptor(u32 panel, u32 distance) { return panel_descriptor(panel, distance) | 1ull << 63; }
inline void fence_async() {}
template <int N>
inline void give_registers() {}
template <int N>
inline void take_registers() {}
inline void wgmma_fence() {}
inline void wgmma_commit() { emulator::commit_products(); }
template <int PENDING = 0>
void wgmma_wait() {
  emulator::wait_products(PENDING);
}
template <class X, int N>
void register_fence(X (&)[N][4]) {}
template <int N>
void register_fence(u32 (&)[N]) {}

// An element of a panel of lines of 128 bytes.
template <class T>
auto of_panel(u64 panel, int line, int k) {
  constexpr int LINE = 128 / int(sizeof(T));
  u32 address = (u32(panel) & 0x3ffff) + line / 8 * 1024 + line % 8 * 128 + k % LINE * sizeof(T) + k / LINE * (u32(panel) >> 18) * 16;
  address ^= (address >> 7 & 7) << 4;
  return factor(*reinterpret_cast<T*>(emulator::shared(address)));
}

template <class A, class B, int TN, bool B_K, bool ADD = true, class Sum>
void wgmma(Sum (&c)[TN][4], u64 a, u64 b) {
  emulator::multiply([&c, a, b] {
    int lane = int(emulator::lane()), warp = int(threadIdx.x) / 32 % 4;
    for (int j = 0; j < TN; ++j)
      for (int i = 0; i < 4; ++i) {
        int row = warp * 16 + lane / 4 + i / 2 * 8, column = j * 8 + lane % 4 * 2 + i % 2;
        if (!ADD) c[j][i] = 0;
        for (int k = 0; k < 32 / int(sizeof(A)); ++k)
          c[j][i] += of_panel<A>(a, row, k) * (B_K ? of_panel<B>(b, column, k) : of_panel<B>(b, k, column));
      }
  });
}
template <bool B_K, class T, int TN>
void wgmma_by_rows(T, float (&c)[TN][4], u64 a, u64 b) {
  emulator::multiply([&c, a, b] {
    int lane = int(emulator::lane()), warp = int(threadIdx.x) / 32 % 4;
    for (int j = 0; j < TN; ++j)
      for (int i = 0; i < 4; ++i) {
        int row = warp * 16 + lane / 4 + i / 2 * 8, column = j * 8 + lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) c[j][i] += of_panel<T>(a, k, row) * (B_K ? of_panel<T>(b, column, k) : of_panel<T>(b, k, column));
      }
  });
}
// The same of lines of 64 bytes, if it is such a panel.
template <class T>
float of_any_panel(u64 panel, int line, int k) {
  if (!(panel >> 63)) return of_panel<T>(panel, line, k);
  u32 address = (u32(panel) & 0x3ffff) + line * 64 + k * sizeof(T);
  address ^= (address >> 7 & 3) << 4;
  return factor(*reinterpret_cast<T*>(emulator::shared(address)));
}
// A lane's places of two rows are in it and its neighbours.
template <int HALF, class T, int TN>
void wgmma_sparse(T, float (&c)[TN][4], u64 a, u64 b, u32 places) {
  const u32 own[1] = {places};
  auto all = emulator::exchange(own, 1);
  int first = int(emulator::lane()) / 4 * 4 + 2 * HALF;
  std::array<u32, 2> words = {all[0][first], all[0][first + 1]};
  emulator::multiply([&c, words, a, b] {
    int lane = int(emulator::lane()), warp = int(threadIdx.x) / 32 % 4;
    for (int j = 0; j < TN; ++j)
      for (int i = 0; i < 4; ++i) {
        int row = warp * 16 + lane / 4 + i / 2 * 8, column = j * 8 + lane % 4 * 2 + i % 2;
        for (int n = 0; n < 16; ++n) {
          u32 group = words[n / 8] >> (i / 2 * 16 + n % 8 / 2 * 4);
          if ((group & 3) >= (group >> 2 & 3)) c[j][i] = NAN;  // of a column that is not stored, or else it is seen
          int k = n / 2 * 4 + int(group >> n % 2 * 2 & 3);
          c[j][i] += of_any_panel<T>(a, row, n) * of_panel<T>(b, column, k);
        }
      }
  });
}
// A warp's lanes meet where it is issued: each takes along the words that its rows are made of, four lanes' of each of the four.
template <class T, int TN, bool ADD = true>
void wgmma(float (&c)[TN][4], const u32 (&a)[4], u64 b) {
  constexpr int EACH = 4 / int(sizeof(T)), K = 8 * EACH;  // values of a word, and of an instruction
  auto all = emulator::exchange(a, 4);
  std::array<std::array<u32, 4>, 4> words;
  int first = int(emulator::lane()) / 4 * 4;
  for (int i = 0; i < 4; ++i)
    for (int q = 0; q < 4; ++q) words[i][q] = all[q][first + i];
  emulator::multiply([&c, words, b] {
    int lane = int(emulator::lane());
    for (int j = 0; j < TN; ++j)
      for (int i = 0; i < 4; ++i) {
        if (!ADD) c[j][i] = 0;
        for (int k = 0; k < K; ++k) {
          u32 word = words[k / EACH % 4][i / 2 + k / EACH / 4 * 2];
          int column = j * 8 + lane % 4 * 2 + i % 2;
          if constexpr (EACH == 1)
            c[j][i] += factor(__uint_as_float(word)) * of_panel<T>(b, column, k);
          else
            c[j][i] += widen(T{u16(word >> (k % 2 * 16))}) * of_panel<T>(b, k, column);
        }
      }
  });
}

// Copies are done at the wait that covers them, or at once.
inline void arrival_start(u32 barrier, u32 count) { emulator::start_arrival(barrier, count); }
inline void arrival_fence() {}
inline void arrive(u32 barrier, u32 count) {
  auto& arrival = emulator::arrival(barrier);
  if (arrival.missing < count) emulator::fail("more arrive at a barrier than it waits for");
  arrival.missing -= count;
  emulator::end_phase(arrival);
}
inline void arrival_expect(u32 barrier, u32 bytes) {
  emulator::arrival(barrier).expected += bytes;
  arrive(barrier, 1);
}
inline void copy_async_arrive(u32 barrier) { emulator::copy_to(barrier); }
inline void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier, u64 policy) {
  if (reinterpret_cast<uintptr_t>(from) % 16 || to % 16 || bytes % 16) emulator::fail("misaligned bulk copy");
  if (policy != evict_first_policy()) emulator::fail("a copy under no policy");
  emulator::copy_to(barrier, {emulator::shared(to), static_cast<const char*>(from), int(bytes), int(bytes)});
}
// Whatever lies outside of memory is found by reading it.
inline void arrival_wait(u32 barrier, u32 parity) {
  while (emulator::arrival(barrier).phase % 2 == parity) {
    emulator::let_arrive(barrier);
    emulator::yield();
  }
}

template <class T>
u32 each_of(u32 a, u32 b, u32 c, auto f) {
  auto one = [&](int shift) {
    auto part = [&](u32 x) { return double(widen(T{u16(x >> shift)})); };
    const double exact = f(part(a), part(b), part(c));
    if constexpr (same<T, f16>) return u32(emulator_bits<u16>(_Float16(exact))) << shift;
    return u32(to_bf16(float(exact)).bits) << shift;
  };
  return one(0) | one(16);
}
template <class T>
u32 add_x2(u32 a, u32 b) { return each_of<T>(a, b, 0, [](double x, double y, double) { return x + y; }); }
template <class T>
u32 sub_x2(u32 a, u32 b) { return each_of<T>(a, b, 0, [](double x, double y, double) { return x - y; }); }
template <class T>
u32 mul_x2(u32 a, u32 b) { return each_of<T>(a, b, 0, [](double x, double y, double) { return x * y; }); }
template <class T>
u32 fma_x2(u32 a, u32 b, u32 c) { return each_of<T>(a, b, c, [](double x, double y, double z) { return x * y + z; }); }
template <class T>
u32 pair_of(float low, float high) {
  return u32(cast<T>(low).bits) | u32(cast<T>(high).bits) << 16;
}
inline u32 and_xor(u32 a, u32 b, u32 c) { return (a & b) ^ c; }
inline u32 bytes_of(u32 low, u32 high, u32 which) {
  const u64 all = u64(high) << 32 | low;
  u32 out = 0;
  for (int i = 0; i < 4; ++i) out |= u32(all >> (which >> 4 * i & 7) * 8 & 255) << 8 * i;
  return out;
}

}  // namespace mt::ptx
