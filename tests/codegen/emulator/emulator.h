// A GPU of fibers: enough of CUDA to run generated kernels on the host, one fiber a thread, all blocks resident.
//
// It is there to find mistakes. Asynchronous copies and products happen as late as they may (at the wait that covers them) or at once,
// fibers take turns in a shuffled order, blocks sleep now and then, and on-chip memory starts as NaN.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
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
struct Warp {
  Barrier barrier;
  uint32_t words[2][8][32];
};
struct Block {
  std::vector<char> memory;
  Barrier barriers[16];
  std::vector<Warp> warps;
  alignas(8) char noted[64];
  char* shared() { return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory.data()) + 127) & ~uintptr_t(127)); }
};
struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Block* block;
  unsigned number, block_number, turn = 0;
  bool done = false;
  std::vector<std::vector<Copy>> groups{1};
  std::vector<std::vector<std::function<void()>>> products{1};  // of warpgroups
};

inline std::vector<Block> blocks;
inline std::vector<Thread> threads;
inline Thread* current;
inline ucontext_t scheduler;
inline bool late_copies;
inline unsigned long long events;
inline const char* failure;
inline void (*entry)();
inline unsigned grid_size, block_size;

inline void yield() { swapcontext(&current->context, &scheduler); }
[[noreturn]] inline void fail(const char* message) {
  if (!failure) failure = message;
  for (;;) yield();
}
inline void count(Barrier& b, int wanted) {
  if (++b.count == wanted) b.count = 0, ++b.generation;
}
inline void arrive(Barrier& b, int wanted) {
  unsigned mine = b.generation;
  count(b, wanted);
  while (b.generation == mine) yield();
}
inline Warp& warp() { return current->block->warps[current->number / 32]; }
inline unsigned lane() { return current->number % 32; }
// Every lane of the warp gives `count` words and then sees those of all lanes.
inline uint32_t (*exchange(const uint32_t* mine, int count))[32] {
  auto& words = warp().words[current->turn++ & 1];
  for (int i = 0; i < count; ++i) words[i][lane()] = mine[i];
  arrive(warp().barrier, 32);
  return words;
}
inline void perform(const Copy& c) {
  std::memset(c.to, 0, c.bytes);
  std::memcpy(c.to, c.from, c.size);
}
inline void copy(Copy c) {
  if (late_copies)
    current->groups.back().push_back(c);
  else
    perform(c);
}
inline void wait_copies(int pending) {
  auto& groups = current->groups;  // the last one is still open
  int ready = int(groups.size()) - 1 - pending;
  for (int i = 0; i < ready; ++i)
    for (auto& c : groups[i]) perform(c);
  if (ready > 0) groups.erase(groups.begin(), groups.begin() + ready);
}
inline void multiply(std::function<void()> product) {
  if (late_copies)
    current->products.back().push_back(std::move(product));
  else
    product();
}
inline void wait_products(int pending) {
  auto& groups = current->products;  // the last one is still open
  int ready = int(groups.size()) - 1 - pending;
  for (int i = 0; i < ready; ++i)
    for (auto& product : groups[i]) product();
  if (ready > 0) groups.erase(groups.begin(), groups.begin() + ready);
}
inline char* shared(uint32_t address) { return current->block->shared() + address; }

inline void trampoline() {
  entry();
  if (current->groups.size() > 1)
    for (auto& g : current->groups)
      if (!g.empty() && !failure) failure = "copies are under way at the end";
  for (auto& g : current->products)
    if (!g.empty() && !failure) failure = "products are under way at the end";
  current->done = true;
  yield();
}
inline const char* run(void (*kernel)(), unsigned workers, unsigned size, unsigned shared_bytes, bool late, unsigned seed) {
  entry = kernel, grid_size = workers, block_size = size, late_copies = late, failure = nullptr;
  blocks.clear(), threads.clear();
  blocks.resize(workers), threads.resize(size_t(workers) * size);
  for (auto& b : blocks) b.memory.assign(shared_bytes + 256, char(0xff)), b.warps.resize(size / 32);
  constexpr size_t STACK = 1 << 17;
  for (size_t i = 0; i < threads.size(); ++i) {
    Thread& t = threads[i];
    t.number = unsigned(i % size), t.block_number = unsigned(i / size), t.block = &blocks[i / size];
    t.stack.reset(new char[STACK]);
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.get(), t.context.uc_stack.ss_size = STACK, t.context.uc_link = &scheduler;
    makecontext(&t.context, trampoline, 0);
  }
  std::mt19937 random(seed);
  std::vector<int> order(threads.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = int(i);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<char> asleep(workers, 0);
  for (long turn = 0;; ++turn) {
    bool left = false;
    for (int i : order) {
      current = &threads[i];
      if (current->done) continue;
      left = true;
      if (asleep[current->block_number]) continue;
      swapcontext(&scheduler, &current->context);
      if (failure) return failure;
    }
    if (!left) return nullptr;
    if (turn > 20'000'000 / long(threads.size())) return "deadlock";
    if (turn % 16 == 0) {
      std::shuffle(order.begin(), order.end(), random);
      for (auto& a : asleep) a = turn % 64 == 0 && random() % 4 == 0;
    }
  }
}

}  // namespace emulator

#define threadIdx (Dim3{emulator::current->number})
#define blockIdx (Dim3{emulator::current->block_number})
#define gridDim (Dim3{emulator::grid_size})
#define blockDim (Dim3{emulator::block_size})

inline void __syncwarp() { emulator::arrive(emulator::warp().barrier, 32); }
inline int __any_sync(unsigned, int x) {
  const uint32_t mine = x != 0;
  const uint32_t* all = emulator::exchange(&mine, 1)[0];
  return std::any_of(all, all + 32, [](uint32_t each) { return each != 0; });
}
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
inline float __double2float_rz(double x) {
  float y = float(x);
  return std::isfinite(y) && std::fabs(double(y)) > std::fabs(x) ? std::nextafterf(y, 0) : y;
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
