// Time stamps of the workers: the layout is in plan/records.py. The clock is the system's, in nanoseconds.
//
// A thread runs the tasks of several workers, each of which has its own records. A wait is recorded once for the thread, with the first of its
// workers, which has the thread's number.
#pragma once
#include <time.h>

#include "cpu/device/pool.h"

typedef struct {
  uint64_t* memory;
  uint64_t capacity;
  int first, step;  // the thread's workers
  uint64_t what, iteration, start;
} mt_profile;
#define MT_PROFILE(name, place) mt_profile name[1]

MT_INLINE uint64_t mt_profile_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

MT_INLINE uint64_t* mt_profile_of(mt_profile* p, int worker) {
  return p->memory + (size_t)worker * (5 + 4 * p->capacity);
}

static __attribute__((unused)) void mt_profile_open(mt_profile* p, void* memory, int capacity, int thread,
                                                    int threads) {
  p->memory = (uint64_t*)memory;
  p->capacity = (uint64_t)capacity;
  p->first = thread;
  p->step = threads;
  for (int worker = thread; worker < MT_WORKERS; worker += threads) {
    uint64_t* header = mt_profile_of(p, worker);
    header[0] = 0;
    header[1] = header[2] = mt_profile_now();
  }
}

MT_INLINE void mt_profile_stage(mt_profile* p, int number, uint64_t iteration) {
  p->what = (uint64_t)number << 8;
  p->iteration = iteration;
}

MT_INLINE void mt_profile_begin(mt_profile* p) { p->start = mt_profile_now(); }

MT_INLINE void mt_profile_end(mt_profile* p, int worker, unsigned kind, idx task) {
  uint64_t* header = mt_profile_of(p, worker);
  if (header[0] < p->capacity) {
    uint64_t* record = header + 5 + 4 * header[0];
    record[0] = p->what | kind | (uint64_t)task << 32;
    record[1] = p->iteration;
    record[2] = p->start;
    record[3] = mt_profile_now();
  }
  ++header[0];
}

static __attribute__((unused)) void mt_profile_close(mt_profile* p) {
  for (int worker = p->first; worker < MT_WORKERS; worker += p->step) {
    uint64_t* header = mt_profile_of(p, worker);
    header[3] = header[4] = mt_profile_now();
  }
}
