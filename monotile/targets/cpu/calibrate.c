// What the figures of a CPU are measured with: one function, which does one of four things on all threads.
#define _GNU_SOURCE
#include "cpu/device/pool.h"

typedef float lanes __attribute__((vector_size(MT_VECTOR_BYTES)));

enum { READ, FMA, BARRIER };
typedef struct {
  int64_t what, bytes, rounds;  // bytes: that a thread reads, in its own part of the memory
} given;

// Volatile, so that what is computed is not left out.
static volatile float sink[MT_WORKERS * 16];

static void body(mt_call* call, int thread) {
  const given* g = call->pointers[0];
  lanes sum[12];
#pragma GCC unroll 12
  for (int k = 0; k < 12; ++k) sum[k] = (lanes){} + (float)(k + thread);
  if (g->what == READ) {
    const lanes* from = (const lanes*)((const char*)call->pointers[1] + thread * g->bytes);
    for (int64_t round = 0; round < g->rounds; ++round) {
      for (int64_t i = 0; i + 8 <= g->bytes / (int64_t)sizeof(lanes); i += 8)
#pragma GCC unroll 8
        for (int k = 0; k < 8; ++k) sum[k] += from[i + k];
      mt_fence();
    }
  }
  if (g->what == FMA) {
    const lanes by = (lanes){} + 1.0001f, more = (lanes){} + 0.0001f;
    for (int64_t round = 0; round < g->rounds; ++round) {
#pragma GCC unroll 12
      for (int k = 0; k < 12; ++k) sum[k] = sum[k] * by + more;
    }
  }
  if (g->what == BARRIER)
    for (int64_t round = 0; round < g->rounds; ++round) mt_barrier(call);
  float all = 0;
#pragma GCC unroll 12
  for (int k = 0; k < 12; ++k) all += sum[k][0];
  sink[thread * 16] = all;
}

int monotile_probe(void* const* pointers, char* workspace) { return mt_run(body, pointers, workspace); }
