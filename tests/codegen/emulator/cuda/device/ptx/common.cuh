// The host's twin of targets/cuda/device/ptx/common.cuh.
#pragma once
#include "emulator.h"

namespace mt::ptx {

inline unsigned opaque(unsigned x) { return x; }
inline unsigned recompute(unsigned x) { return x; }
inline void pause() {}
inline void request(const void* from) { (void)*static_cast<const volatile char*>(from); }
template <class T>
T* recompute(T* p) { return p; }
inline unsigned uniform(unsigned x) { return emulator::exchange(&x, 1)[0][0]; }
inline void trap(unsigned*, unsigned number) {
  static char text[64];
  std::snprintf(text, sizeof(text), "failure %u", number - 1);
  emulator::fail(text);
}

inline float f16_to_f32(unsigned short x) { return float(emulator_bits<_Float16>(x)); }
inline unsigned short f32_to_f16(float x) { return emulator_bits<unsigned short>(_Float16(x)); }
inline unsigned short f32_to_bf16(float x) {
  unsigned u = __float_as_uint(x);
  if (x != x) return 0x7fff;
  return (unsigned short)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
inline float exp2_fast(float x) { return exp2f(x); }
inline float reciprocal_fast(float x) { return 1.0f / x; }
inline float max_nan(float a, float b) { return a != a || b != b ? __uint_as_float(0x7fffffff) : a > b ? a : b; }
inline float min_nan(float a, float b) { return a != a || b != b ? __uint_as_float(0x7fffffff) : a < b ? a : b; }

// Instructions for global memory take no address of on-chip memory.
inline void check_global(const void* p) {
  const auto& memory = emulator::current->block->memory;
  const char* at = static_cast<const char*>(p);
  if (at >= memory.data() && at < memory.data() + memory.size()) emulator::fail("an access of global memory on chip");
}

template <class T>
T checked_load(const void* p) {
  check_global(p);
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T)) emulator::fail("misaligned load");
  T x;
  std::memcpy(&x, p, sizeof(T));
  return x;
}
inline unsigned char load_constant_1(const void* p) { return checked_load<unsigned char>(p); }
inline unsigned short load_constant_2(const void* p) { return checked_load<unsigned short>(p); }
inline unsigned load_constant_4(const void* p) { return checked_load<unsigned>(p); }
inline uint2 load_constant_8(const void* p) { return checked_load<uint2>(p); }
inline uint4 load_constant_16(const void* p) { return checked_load<uint4>(p); }
inline uint2 load_now_8(const void* p) { return checked_load<uint2>(p); }
inline uint4 load_now_16(const void* p) { return checked_load<uint4>(p); }

template <class T>
void store_if(bool there, void* p, T x) {
  check_global(p);
  if (there) *static_cast<T*>(p) = x;
}

inline void barrier_all() { emulator::arrive(emulator::current->block->barriers[0], int(emulator::block_size)); }
template <int THREADS>
void barrier_some(int id) {
  emulator::arrive(emulator::current->block->barriers[id], THREADS);
}
template <int THREADS>
void barrier_arrive(int id) {
  emulator::count(emulator::current->block->barriers[id], THREADS);
}
inline void add_release(unsigned* p, unsigned x) { *p += x; }
inline unsigned fetch_add_acq_rel(unsigned* p, unsigned x) {
  unsigned old = *p;
  *p += x;
  return old;
}
inline unsigned load_acquire(const unsigned* p) {
  emulator::yield();
  return *p;
}
inline void store_relaxed(unsigned* p, unsigned x) { *p = x; }
inline void store_word_8(void* p, unsigned long long x) {
  if (reinterpret_cast<uintptr_t>(p) % 8) emulator::fail("misaligned store");
  std::memcpy(p, &x, 8);
}
inline unsigned long long load_word_8(const void* p) {
  emulator::yield();
  return checked_load<unsigned long long>(p);
}
inline void load_words_16(const void* p, unsigned long long& x, unsigned long long& y) {
  if (reinterpret_cast<uintptr_t>(p) % 16) emulator::fail("misaligned load");
  emulator::yield();
  y = checked_load<unsigned long long>(static_cast<const char*>(p) + 8);
  x = checked_load<unsigned long long>(p);
}
inline unsigned long long nanoseconds() { return ++emulator::events; }  // of all threads: a clock that never stands still
inline unsigned long long cycles() { return ++emulator::events; }
inline char* shared_memory() { return emulator::current->block->shared(); }
inline void assume_global(const volatile void*) {}
template <class T>
T in_lanes(T x) {
  return x;
}

}  // namespace mt::ptx
