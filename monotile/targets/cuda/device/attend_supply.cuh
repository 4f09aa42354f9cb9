// How the queries, keys and values of attention come into shared memory.
#pragma once
#include "cuda/device/attend_stream.cuh"

namespace mt {

// The panels of one chunk: each begins `rows` rows and `k` values of k after the one before.
struct PanelSequence {
  int panels = 1, rows = 0, k = 0;
};

// Brings the panels of a chunk in with the threads of `Copies`. Copies are issued; evaluated values are stored at once.
template <class Side, class Panel, class Copies, PanelSequence SEQUENCE, class Operand>
__device__ __forceinline__ void copy_panels(char* panel, const Operand& operand, int row0, int row_end, int k0, int thread) {
#pragma unroll
  for (int i = 0; i < SEQUENCE.panels; ++i, panel += Panel::BYTES, row0 += SEQUENCE.rows, k0 += SEQUENCE.k) {
    if constexpr (Side::COPY == Copy::ASYNC) {
      Copies::issue(panel, operand, row0, row_end, k0, thread);
    } else {
      typename Copies::Values values;
      Copies::evaluate(values, operand, row0, row_end, k0, thread);
      Copies::store(panel, values, thread);
    }
  }
}

// Brings one operand in, chunk after chunk of a slice. Where its elements lie at constant distances, a pointer moves on that
// `fix_address` computes once: otherwise half of a chunk's instructions compute addresses.
template <class Side, class Panel, class Copies, PanelSequence SEQUENCE, class Operand>
struct Supply {
  const Operand& operand;
  int row0, row_end, k0, thread;

  __device__ __forceinline__ Supply(const Operand& x, int row0, int row_end, int k0, int thread)
      : operand(x), row0(row0), row_end(row_end), k0(k0), thread(thread) {}
  __device__ __forceinline__ void begin(char* panel) const {
    copy_panels<Side, Panel, Copies, SEQUENCE>(panel, operand, row0, row_end, k0, thread);
  }
  __device__ __forceinline__ void advance(int rows, int k) { row0 += rows, k0 += k; }
  __device__ __forceinline__ void fix_address() const {}
};
template <class Side, class Panel, class Copies, PanelSequence SEQUENCE, class T, int ROW_STEP, int K_STEP>
  requires(Copies::REGULAR && Side::COPY == Copy::ASYNC)
struct Supply<Side, Panel, Copies, SEQUENCE, Linear<T, ROW_STEP, K_STEP>> {
  using Walk = typename Copies::template Walk<Linear<T, ROW_STEP, K_STEP>>;
  Walk walk;
  int thread;

  __device__ __forceinline__ Supply(const Linear<T, ROW_STEP, K_STEP>& x, int row0, int row_end, int k0, int thread)
      : walk(x, row0, row_end, k0, thread), thread(thread) {}
  __device__ __forceinline__ void begin(char* panel) const {
    Walk part = walk;
#pragma unroll
    for (int i = 0; i < SEQUENCE.panels; ++i, part.move(SEQUENCE.rows, SEQUENCE.k))
      part.issue(ptx::shared_address(panel) + i * Panel::BYTES, thread);
  }
  __device__ __forceinline__ void advance(int rows, int k) { walk.move(rows, k); }
  __device__ __forceinline__ void fix_address() { walk.from = ptx::recompute(walk.from), walk.offset = ptx::recompute(walk.offset); }
};

// The supplies of a slice's threads: queries for the whole block, keys and values from the slice's first chunk on. thread: the
// thread's number within the slice.
template <class S, class Query, class Key, class Value>
struct Supplies {
  static constexpr PanelSequence FEATURES{.panels = S::FEATURE_PANELS, .k = S::PANEL_FEATURES};
  static constexpr PanelSequence COLUMNS{.panels = S::COLUMN_PANELS, .rows = S::PANEL_COLUMNS};
  Supply<typename S::Query, typename S::QueryPanel, typename S::QueryCopies, FEATURES, Query> queries;
  Supply<typename S::Key, typename S::KeyPanel, typename S::KeyCopies, FEATURES, Key> keys;
  Supply<typename S::Value, typename S::ValuePanel, typename S::ValueCopies, COLUMNS, Value> values;

  __device__ __forceinline__ Supplies(const ThreadRole<S>& role, int thread, int m0, int m1, const Query& query, const Key& key,
                                      const Value& value)
      : queries(query, m0, m1, 0, threadIdx.x),
        keys(key, role.first(0), S::KEYS, 0, thread),
        values(value, 0, S::WIDTH, role.first(0), thread) {
    queries.fix_address(), keys.fix_address(), values.fix_address();
  }
};

}  // namespace mt
