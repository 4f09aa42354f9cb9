// A GPU of fibers: enough of CUDA to run generated kernels on the host, one fiber a thread, all blocks resident.
//
// It is there to find mistakes. Asynchronous copies and products happen as late as they may (at the wait that covers them) or at once,
// fibers take turns in a shuffled order, blocks sleep now and then, and on-chip memory starts as NaN.
//
// Every kernel is compiled with it, so it has the small ones of the standard headers and what kernels use; emulator.cpp has the rest.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __builtin_assume(x) ((x) ? void() : emulator::fail("a false assumption: " #x))

struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
struct Dim3 {
  unsigned x;
};

namespace emulator {

struct Barrier {
  int count = 0;
  unsigned generation = 0;
};
struct Copy {
  char* to;
  const char* from;
  int bytes, size;
};
// What arrives on a barrier in shared memory. count, missing: arrivals of a phase, and those that it waits for. copies: on their way;
// expected, arrived: bytes that it waits for, and that have come.
struct Arrival {
  unsigned count = 0, missing = 0;
  std::vector<Copy> copies;
  unsigned phase = 0, expected = 0, arrived = 0;
};
struct Warp {
  Barrier barrier;
  uint32_t words[2][8][32];
};
struct Block {
  std::vector<char> memory;
  Barrier barriers[16];
  std::vector<Warp> warps;
  char* shared() { return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory.data()) + 127) & ~uintptr_t(127)); }
};
struct Thread {
  Block* block;
  unsigned number, block_number, turn = 0;
};
// A function of no arguments, and what it captured.
struct Product {
  void (*call)(const void*);
  alignas(16) char captured[96];
};

extern Thread* current;
extern unsigned grid_size, block_size;
extern unsigned long long events;

// emulator.cpp has what follows: compiled once, not with every kernel.
void yield();
[[noreturn]] void fail(const char* message);
void count(Barrier& b, int wanted);
void arrive(Barrier& b, int wanted);
// Every lane of the warp gives `count` words and then sees those of all lanes.
uint32_t (*exchange(const uint32_t* mine, int count))[32];
void copy(Copy c);
void commit_copies();
void wait_copies(int pending);
void start_arrival(uint32_t barrier, uint32_t count);
// The started barrier at that shared address.
Arrival& arrival(uint32_t barrier);
// A copy that arrives there, late or at once.
void copy_to(uint32_t barrier, Copy c);
// The thread's own, of the group that is open, arrive there.
void copy_to(uint32_t barrier);
// Performs the copies on their way there.
void let_arrive(uint32_t barrier);
// Ends the phase if nothing is missing.
void end_phase(Arrival& a);
void multiply(const Product& product);
void commit_products();
void wait_products(int pending);
// Runs `kernel` in `workers` blocks of `size` threads; gives why it failed, or null.
const char* run(void (*kernel)(), unsigned workers, unsigned size, unsigned shared_bytes, bool late, unsigned seed);

template <class F>
void multiply(F f) {
  static_assert(std::is_trivially_copyable_v<F> && sizeof(F) <= sizeof(Product::captured));
  Product product{[](const void* captured) { (*static_cast<const F*>(captured))(); }};
  std::memcpy(product.captured, &f, sizeof(F));
  multiply(product);
}
inline Warp& warp() { return current->block->warps[current->number / 32]; }
inline unsigned lane() { return current->number % 32; }
inline char* shared(uint32_t address) { return current->block->shared() + address; }

}  // namespace emulator

#define threadIdx (Dim3{emulator::current->number})
#define blockIdx (Dim3{emulator::current->block_number})
#define gridDim (Dim3{emulator::grid_size})
#define blockDim (Dim3{emulator::block_size})

inline void __syncwarp() { emulator::arrive(emulator::warp().barrier, 32); }
inline int __any_sync(unsigned, int x) {
  const uint32_t mine = x != 0;
  const uint32_t* all = emulator::exchange(&mine, 1)[0];
  uint32_t any = 0;
  for (int i = 0; i < 32; ++i) any |= all[i];
  return any != 0;
}
inline int __all_sync(unsigned mask, int x) { return !__any_sync(mask, !x); }
inline unsigned __ballot_sync(unsigned, bool x) {
  const uint32_t mine = x;
  const uint32_t* all = emulator::exchange(&mine, 1)[0];
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) bits |= all[i] << i;
  return bits;
}
inline unsigned __match_any_sync(unsigned, int x) {
  const uint32_t mine = uint32_t(x);
  const uint32_t* all = emulator::exchange(&mine, 1)[0];
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) bits |= unsigned(all[i] == mine) << i;
  return bits;
}
inline int __shfl_up_sync(unsigned, int x, int step) {
  const uint32_t mine = uint32_t(x);
  const uint32_t* all = emulator::exchange(&mine, 1)[0];
  const int from = int(emulator::lane()) - step;
  return from < 0 ? x : int(all[from]);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __shfl_sync(unsigned, unsigned x, int lane) { return emulator::exchange(&x, 1)[0][lane]; }
inline unsigned __shfl_xor_sync(unsigned, unsigned x, int mask) { return emulator::exchange(&x, 1)[0][emulator::lane() ^ mask]; }
template <class To, class From>
To emulator_bits(From x) {
  To y;
  static_assert(sizeof(x) == sizeof(y));
  std::memcpy(&y, &x, sizeof(y));
  return y;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}
inline float __uint_as_float(unsigned x) { return emulator_bits<float>(x); }
inline unsigned __float_as_uint(float x) { return emulator_bits<unsigned>(x); }
inline long __double_as_longlong(double x) { return emulator_bits<long>(x); }
inline double __longlong_as_double(long x) { return emulator_bits<double>(x); }
inline float __double2float_rz(double x) {
  float y = float(x);
  return std::isfinite(y) && std::fabs(double(y)) > std::fabs(x) ? std::nextafterf(y, 0) : y;
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
