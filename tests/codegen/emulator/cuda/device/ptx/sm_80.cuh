// The host's twin of device/cuda/ptx/sm_80.cuh.
#pragma once
#include "cuda/device/float8.cuh"

namespace mt::ptx {

inline u32 shared_address(const void* p) { return u32(static_cast<const char*>(p) - emulator::current->block->shared()); }

template <int BYTES>
void copy_async(u32 to, const void* from) {
  if (reinterpret_cast<uintptr_t>(from) % BYTES || to % BYTES) emulator::fail("misaligned asynchronous copy");
  emulator::copy({emulator::shared(to), static_cast<const char*>(from), BYTES, BYTES});
}
inline u64 evict_first_policy() { return 1; }
inline void copy_async_with_policy(u32 to, const void* from, u64 policy) {
  if (policy != evict_first_policy()) emulator::fail("a copy under no policy");
  copy_async<16>(to, from);
}
template <int BYTES>
void copy_async_part(u32 to, const void* from, u32 size) {
  if (reinterpret_cast<uintptr_t>(from) % BYTES || to % BYTES) emulator::fail("misaligned asynchronous copy");
  emulator::copy({emulator::shared(to), static_cast<const char*>(from), BYTES, size});
}
template <int BYTES>
void copy_async_or_zero(u32 to, const void* from, bool there) {
  copy_async_part<BYTES>(to, from, there ? BYTES : 0);
}
inline void copy_async_commit() { emulator::commit_copies(); }
template <int PENDING>
void copy_async_wait() {
  emulator::wait_copies(PENDING);
}

template <bool TRANSPOSED, int COUNT>
void load_matrix(u32 (&r)[COUNT], u32 address) {
  if (emulator::lane() < COUNT * 8 && address % 16) emulator::fail("misaligned matrix load");
  auto all = emulator::exchange(&address, 1);
  int lane = int(emulator::lane());
  for (int m = 0; m < COUNT; ++m) {
    u16 pair[2];
    for (int e = 0; e < 2; ++e) {
      int row = TRANSPOSED ? lane % 4 * 2 + e : lane / 4, column = TRANSPOSED ? lane / 4 : lane % 4 * 2 + e;
      pair[e] = reinterpret_cast<u16*>(emulator::shared(all[0][m * 8 + row]))[column];
    }
    r[m] = u32(pair[0]) | u32(pair[1]) << 16;
  }
}
template <bool TRANSPOSED>
void load_matrix_x4(u32 (&r)[4], u32 address) {
  load_matrix<TRANSPOSED>(r, address);
}
template <bool TRANSPOSED>
void load_matrix_x2(u32 (&r)[2], u32 address) {
  load_matrix<TRANSPOSED>(r, address);
}

inline u32 to_tf32(u32 x) { return (x & 0x7fffffff) >= 0x7f800000 ? x & 0xffffe000 : (x + 0x1000) & 0xffffe000; }

// What tensor cores take of an element.
inline int factor(i8 x) { return x; }
inline int factor(u8 x) { return x; }
inline float factor(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000); }
inline float factor(f8e4m3 x) { return widen(x); }
inline float factor(f16 x) { return widen(x); }
inline float factor(bf16 x) { return widen(x); }

template <class A, class B, class Sum>
void mma(Sum (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  constexpr int WORD = 4 / int(sizeof(A)), K = 8 * WORD;
  u32 mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  auto all = emulator::exchange(mine, 6);
  auto element = [](auto kind, u32 word, int e) {
    decltype(kind) parts[WORD];
    std::memcpy(parts, &word, 4);
    return factor(parts[e]);
  };
  int lane = int(emulator::lane());
  for (int i = 0; i < 4; ++i) {
    int m = lane / 4 + i / 2 * 8, n = lane % 4 * 2 + i % 2;
    Sum total = 0;
    for (int k = 0; k < K; ++k) {
      int word = k / WORD, in_a = m % 8 * 4 + word % 4, in_b = n * 4 + word % 4;
      total += element(A{}, all[m / 8 + word / 4 * 2][in_a], k % WORD) * element(B{}, all[4 + word / 4][in_b], k % WORD);
    }
    c[i] += total;
  }
}

template <class T>
void mma_16816(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  mma<T, T>(c, a, b);
}

}  // namespace mt::ptx
