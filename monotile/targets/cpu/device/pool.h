// The threads that run a call: the caller and a pool of the library's own, created at the first call and kept.
//
// A Plan's workers are distributed over the available threads: worker w runs on thread w % threads. So a Plan for
// many workers also runs on few processors. Calls from several threads run one after the other. After a fork the
// child creates its own pool.
#pragma once
#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before the first header: the pool asks for processor affinity"
#endif
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "cpu/device/integer.h"

#if defined(__x86_64__) || defined(__i386__)
#define mt_relax() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define mt_relax() __asm__ volatile("yield")
#else
#define mt_relax() ((void)0)
#endif

#define MT_SPINS_BEFORE_YIELD 2000   // about 50 us: far longer than a barrier takes on free processors
#define MT_SPINS_BEFORE_SLEEP 20000  // how long an idle thread waits for the next call before it sleeps

typedef struct {
  void* const* pointers;
  char* workspace;
  int threads;
  _Alignas(64) atomic_int status;   // 1 + the number of the first index check that failed
  _Alignas(64) atomic_int arrived;  // threads at the barrier
  _Alignas(64) atomic_uint phase;   // barriers passed
} mt_call;

// A thread's part of a call. Thread 0 is the caller.
typedef void mt_body(mt_call* call, int thread);

MT_INLINE idx mt_check(mt_call* call, int64_t i, int64_t extent, int number) {
  if (__builtin_expect(i >= 0 && i < extent, 1)) return (idx)i;
  int none = 0;
  atomic_compare_exchange_strong(&call->status, &none, number + 1);
  return 0;
}
#define MT_CHECK(i, extent, number) mt_check(call, (int64_t)(i), extent, number)
#define MT_POINTER(n) pointers[n]
typedef const int64_t* mt_size;
typedef const double* mt_number;

// The compiler moves no memory access across it. Between the steps of a thread the same bytes of the workspace
// may change their type.
#define mt_fence() __asm__ volatile("" ::: "memory")

// All threads of the call wait for each other. What was written before the barrier is visible after it.
static __attribute__((unused)) void mt_barrier(mt_call* call) {
  if (call->threads == 1) return;
  unsigned phase = atomic_load_explicit(&call->phase, memory_order_relaxed);
  if (atomic_fetch_add_explicit(&call->arrived, 1, memory_order_acq_rel) == call->threads - 1) {
    atomic_store_explicit(&call->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&call->phase, phase + 1, memory_order_release);
    return;
  }
  for (int spins = 0; atomic_load_explicit(&call->phase, memory_order_acquire) == phase; ++spins) {
    if (spins < MT_SPINS_BEFORE_YIELD)
      mt_relax();
    else
      sched_yield();
  }
}

static struct {
  pthread_mutex_t call_lock;  // held during a call
  pthread_mutex_t sleep;      // protects `wake`
  pthread_cond_t wake;
  pthread_t thread[MT_WORKERS];
  int count;       // threads created, without the caller
  int threads;     // threads of a call, with the caller, as long as the caller stays on `home`
  int home;        // the processor of the caller when the affinities were last set
  unsigned first;  // the epoch in which the newest threads were created
  bool prepared;
  mt_body* body;
  mt_call call;
  _Alignas(64) atomic_uint epoch;  // calls begun
  atomic_int sleepers;
  atomic_bool quit;
  _Alignas(64) atomic_int running;  // threads of the pool that have not finished the call
} mt_pool = {
    .call_lock = PTHREAD_MUTEX_INITIALIZER,
    .sleep = PTHREAD_MUTEX_INITIALIZER,
    .wake = PTHREAD_COND_INITIALIZER,
    .home = -1,
};

// The next epoch after `seen`, once there is one.
static unsigned mt_await_call(unsigned seen) {
  for (int spins = 0; spins < MT_SPINS_BEFORE_SLEEP; ++spins) {
    unsigned now = atomic_load(&mt_pool.epoch);
    if (now != seen) return now;
    mt_relax();
  }
  pthread_mutex_lock(&mt_pool.sleep);
  atomic_fetch_add(&mt_pool.sleepers, 1);
  while (atomic_load(&mt_pool.epoch) == seen) pthread_cond_wait(&mt_pool.wake, &mt_pool.sleep);
  atomic_fetch_sub(&mt_pool.sleepers, 1);
  pthread_mutex_unlock(&mt_pool.sleep);
  return atomic_load(&mt_pool.epoch);
}

static void mt_begin_epoch(void) {
  atomic_fetch_add(&mt_pool.epoch, 1);
  if (atomic_load(&mt_pool.sleepers) > 0) {
    pthread_mutex_lock(&mt_pool.sleep);
    pthread_cond_broadcast(&mt_pool.wake);
    pthread_mutex_unlock(&mt_pool.sleep);
  }
}

static void* mt_thread(void* argument) {
  int thread = (int)(intptr_t)argument;
  unsigned seen = mt_pool.first;
  for (;;) {
    seen = mt_await_call(seen);
    if (atomic_load(&mt_pool.quit)) return NULL;
    if (thread < mt_pool.call.threads) mt_pool.body(&mt_pool.call, thread);
    atomic_fetch_sub_explicit(&mt_pool.running, 1, memory_order_release);
  }
}

// Binds thread k of the pool to the k-th allowed processor after the caller's, which stays free for the caller.
static void mt_set_affinities(const cpu_set_t* allowed, int home) {
  int processor = home;
  for (int k = 0; k < mt_pool.count; ++k) {
    do processor = (processor + 1) % CPU_SETSIZE;
    while (!CPU_ISSET(processor, allowed));
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    pthread_setaffinity_np(mt_pool.thread[k], sizeof one, &one);
  }
  mt_pool.home = home;
}

static void mt_before_fork(void) { pthread_mutex_lock(&mt_pool.call_lock); }
static void mt_after_fork_parent(void) { pthread_mutex_unlock(&mt_pool.call_lock); }
static void mt_after_fork_child(void) {
  mt_pool.count = 0;
  mt_pool.home = -1;
  atomic_store(&mt_pool.epoch, 0);
  atomic_store(&mt_pool.sleepers, 0);
  pthread_mutex_init(&mt_pool.call_lock, NULL);
  pthread_mutex_init(&mt_pool.sleep, NULL);
  pthread_cond_init(&mt_pool.wake, NULL);
}

// Creates threads up to `wanted`, with the caller, but no more than the processors that the caller may use.
// Returns how many there are.
static int mt_start_threads(int wanted) {
  if (!mt_pool.prepared) {
    mt_pool.prepared = true;
    pthread_atfork(mt_before_fork, mt_after_fork_parent, mt_after_fork_child);
  }
  int home = sched_getcpu();
  if (home >= 0 && home == mt_pool.home) return mt_pool.threads;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  bool known = pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed) == 0;
  int processors = known ? CPU_COUNT(&allowed) : wanted;
  if (wanted > processors) wanted = processors;
  if (wanted < 1) wanted = 1;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's own threads handle signals
  mt_pool.first = atomic_load(&mt_pool.epoch);
  while (mt_pool.count < wanted - 1) {
    void* number = (void*)(intptr_t)(mt_pool.count + 1);
    if (pthread_create(&mt_pool.thread[mt_pool.count], NULL, mt_thread, number) != 0) break;
    ++mt_pool.count;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (known && home >= 0 && CPU_ISSET(home, &allowed)) mt_set_affinities(&allowed, home);
  mt_pool.threads = mt_pool.count + 1 < wanted ? mt_pool.count + 1 : wanted;
  return mt_pool.threads;
}

static __attribute__((unused)) int mt_run(mt_body* body, void* const* pointers, char* workspace) {
  pthread_mutex_lock(&mt_pool.call_lock);
  int threads = mt_start_threads(MT_WORKERS);
  mt_call* call = &mt_pool.call;
  mt_pool.body = body;
  call->pointers = pointers;
  call->workspace = workspace;
  call->threads = threads;
  atomic_store_explicit(&call->status, 0, memory_order_relaxed);
  atomic_store_explicit(&mt_pool.running, threads > 1 ? mt_pool.count : 0, memory_order_relaxed);
  if (threads > 1) mt_begin_epoch();
  body(call, 0);
  for (int spins = 0; atomic_load_explicit(&mt_pool.running, memory_order_acquire) > 0; ++spins) {
    if (spins < MT_SPINS_BEFORE_YIELD)
      mt_relax();
    else
      sched_yield();
  }
  int status = atomic_load_explicit(&call->status, memory_order_relaxed);
  pthread_mutex_unlock(&mt_pool.call_lock);
  return status;
}

// Runs when the object is unloaded or the process ends.
static __attribute__((destructor, unused)) void mt_stop_threads(void) {
  if (mt_pool.count == 0) return;
  pthread_mutex_lock(&mt_pool.call_lock);
  atomic_store(&mt_pool.quit, true);
  mt_begin_epoch();
  for (int k = 0; k < mt_pool.count; ++k) pthread_join(mt_pool.thread[k], NULL);
  mt_pool.count = 0;
  atomic_store(&mt_pool.quit, false);
  pthread_mutex_unlock(&mt_pool.call_lock);
}
