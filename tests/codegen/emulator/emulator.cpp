// The emulator's fibers, barriers and copies.
#include "emulator.h"

namespace emulator {

Thread* current;
unsigned grid_size, block_size;
unsigned long long events;

namespace {

std::vector<Block> blocks;
std::vector<Thread> threads;
ucontext_t scheduler;
bool late_copies;
const char* failure;
void (*entry)();

void perform(const Copy& c) {
  std::memset(c.to, 0, c.bytes);
  std::memcpy(c.to, c.from, c.size);
}
void trampoline() {
  entry();
  if (current->groups.size() > 1)
    for (auto& g : current->groups)
      if (!g.empty() && !failure) failure = "copies are under way at the end";
  for (auto& g : current->products)
    if (!g.empty() && !failure) failure = "products are under way at the end";
  current->done = true;
  yield();
}

}  // namespace

void yield() { swapcontext(&current->context, &scheduler); }
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
    current->groups.back().push_back(c);
  else
    perform(c);
}
void commit_copies() { current->groups.emplace_back(); }
void wait_copies(int pending) {
  auto& groups = current->groups;  // the last one is still open
  int ready = int(groups.size()) - 1 - pending;
  for (int i = 0; i < ready; ++i)
    for (auto& c : groups[i]) perform(c);
  if (ready > 0) groups.erase(groups.begin(), groups.begin() + ready);
}
Arrival& arrival(uint32_t barrier) {
  auto found = current->block->arrivals.find(barrier);
  if (found == current->block->arrivals.end()) fail("a barrier that was not started");
  return found->second;
}
void copy_to(uint32_t barrier, Copy c) {
  arrival(barrier).copies.push_back(c);
  if (!late_copies) let_arrive(barrier);
}
void copy_to(uint32_t barrier) {
  Arrival& a = arrival(barrier);
  auto& own = current->groups.back();
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
void multiply(std::function<void()> product) {
  if (late_copies)
    current->products.back().push_back(std::move(product));
  else
    product();
}
void commit_products() { current->products.emplace_back(); }
void wait_products(int pending) {
  auto& groups = current->products;  // the last one is still open
  int ready = int(groups.size()) - 1 - pending;
  for (int i = 0; i < ready; ++i)
    for (auto& product : groups[i]) product();
  if (ready > 0) groups.erase(groups.begin(), groups.begin() + ready);
}
const char* run(void (*kernel)(), unsigned workers, unsigned size, unsigned shared_bytes, bool late, unsigned seed) {
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
    if (!left) {
      for (auto& b : blocks)
        for (auto& [barrier, a] : b.arrivals)
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

}  // namespace emulator
