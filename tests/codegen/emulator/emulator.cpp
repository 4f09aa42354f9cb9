// The emulator's fibers, barriers and copies.
#include <algorithm>
#include <map>
#include <memory>
#include <random>

#include "emulator.h"  // last: it defines words that the standard headers use

// Stores the registers that a callee saves on the stack, and where that ends at `from`; goes on where `to` was stored. Not swapcontext: that
// makes two calls of the system a turn, to save a signal mask that nobody changes.
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.text
.hidden emulator_switch
.globl emulator_switch
emulator_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");

namespace emulator {

Thread* current;
unsigned grid_size, block_size;
unsigned long long events;

namespace {

struct Fiber : Thread {
  void* at;  // of its stack, while it waits for its turn
  std::unique_ptr<char[]> stack;
  bool done = false;
  std::vector<std::vector<Copy>> groups{1};
  std::vector<std::vector<Product>> products{1};  // of warpgroups
};

std::vector<Block> blocks;
std::vector<std::map<uint32_t, Arrival>> arrivals;  // of each block, by shared address
std::vector<Fiber> threads;
void* scheduler;
bool late_copies;
const char* failure;
void (*entry)();

Fiber& fiber() { return *static_cast<Fiber*>(current); }
void perform(const Copy& c) {
  std::memset(c.to, 0, c.bytes);
  std::memcpy(c.to, c.from, c.size);
}
void trampoline() {
  entry();
  if (fiber().groups.size() > 1)
    for (auto& g : fiber().groups)
      if (!g.empty() && !failure) failure = "copies are under way at the end";
  for (auto& g : fiber().products)
    if (!g.empty() && !failure) failure = "products are under way at the end";
  fiber().done = true;
  yield();
}

}  // namespace

void yield() { emulator_switch(&fiber().at, scheduler); }
[[noreturn]] void fail(const char* message) {
  if (!failure) failure = message;
  for (;;) yield();
}
void count(Barrier& b, int wanted) {
  if (++b.count == wanted) b.count = 0, ++b.generation;
}
void arrive(Barrier& b, int wanted) {
  unsigned mine = b.generation;
  count(b, wanted);
  while (b.generation == mine) yield();
}
uint32_t (*exchange(const uint32_t* mine, int count))[32] {
  auto& words = warp().words[current->turn++ & 1];
  for (int i = 0; i < count; ++i) words[i][lane()] = mine[i];
  arrive(warp().barrier, 32);
  return words;
}
void copy(Copy c) {
  if (late_copies)
    fiber().groups.back().push_back(c);
  else
    perform(c);
}
void commit_copies() { fiber().groups.emplace_back(); }
void wait_copies(int pending) {
  auto& groups = fiber().groups;  // the last one is still open
  int ready = int(groups.size()) - 1 - pending;
  for (int i = 0; i < ready; ++i)
    for (auto& c : groups[i]) perform(c);
  if (ready > 0) groups.erase(groups.begin(), groups.begin() + ready);
}
void start_arrival(uint32_t barrier, uint32_t count) { arrivals[current->block_number][barrier] = {.count = count, .missing = count}; }
Arrival& arrival(uint32_t barrier) {
  auto& started = arrivals[current->block_number];
  auto found = started.find(barrier);
  if (found == started.end()) fail("a barrier that was not started");
  return found->second;
}
void copy_to(uint32_t barrier, Copy c) {
  arrival(barrier).copies.push_back(c);
  if (!late_copies) let_arrive(barrier);
}
void copy_to(uint32_t barrier) {
  Arrival& a = arrival(barrier);
  auto& own = fiber().groups.back();
  for (auto& c : own) a.expected += c.bytes, a.copies.push_back(c);
  own.clear();
}
void let_arrive(uint32_t barrier) {
  auto& a = arrival(barrier);
  for (auto& c : a.copies) perform(c), a.arrived += c.bytes;
  a.copies.clear();
  end_phase(a);
}
void end_phase(Arrival& a) {
  if (a.missing == 0 && a.arrived == a.expected) ++a.phase, a.missing = a.count, a.expected = a.arrived = 0;
}
void multiply(const Product& product) {
  if (late_copies)
    fiber().products.back().push_back(product);
  else
    product.call(product.captured);
}
void commit_products() { fiber().products.emplace_back(); }
void wait_products(int pending) {
  auto& groups = fiber().products;  // the last one is still open
  int ready = int(groups.size()) - 1 - pending;
  for (int i = 0; i < ready; ++i)
    for (auto& product : groups[i]) product.call(product.captured);
  if (ready > 0) groups.erase(groups.begin(), groups.begin() + ready);
}

namespace {

// Gives every fiber its turns until all are done.
const char* take_turns(unsigned workers, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> order(threads.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = int(i);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<char> asleep(workers, 0);
  for (long turn = 0;; ++turn) {
    bool left = false;
    for (int i : order) {
      Fiber& next = threads[i];
      if (next.done) continue;
      left = true;
      if (asleep[next.block_number]) continue;
      current = &next;
      emulator_switch(&scheduler, next.at);
      if (failure) return failure;
    }
    if (!left) {
      for (auto& started : arrivals)
        for (auto& [barrier, a] : started)
          if (a.expected) return "bulk copies are under way at the end";
      return nullptr;
    }
    if (turn > 20'000'000 / long(threads.size())) return "deadlock";
    if (turn % 16 == 0) {
      std::shuffle(order.begin(), order.end(), random);
      for (auto& a : asleep) a = turn % 64 == 0 && random() % 4 == 0;
    }
  }
}

}  // namespace

const char* run(void (*kernel)(), unsigned workers, unsigned size, unsigned shared_bytes, bool late, unsigned seed) {
  entry = kernel, grid_size = workers, block_size = size, late_copies = late, failure = nullptr;
  blocks.resize(workers), arrivals.resize(workers), threads.resize(size_t(workers) * size);
  for (auto& b : blocks) b.memory.assign(shared_bytes + 256, char(0xff)), b.warps.resize(size / 32);
  constexpr size_t STACK = 1 << 17;
  for (size_t i = 0; i < threads.size(); ++i) {
    Fiber& t = threads[i];
    t.number = unsigned(i % size), t.block_number = unsigned(i / size), t.block = &blocks[i / size];
    t.stack.reset(new char[STACK]);
    // What the first turn takes from its stack: six registers, and the function; the address behind it is never returned to.
    auto top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(t.stack.get()) + STACK) & ~uintptr_t(15));
    top[-1] = nullptr, top[-2] = reinterpret_cast<void*>(trampoline);
    t.at = top - 8;
  }
  const char* failed = take_turns(workers, seed);
  blocks.clear(), arrivals.clear(), threads.clear();  // every kernel has its own emulator: its memory would stay
  return failed;
}

}  // namespace emulator
