// How the queries, keys and values of a softmax-weighted sum come on chip.
#pragma once
#include "cuda/device/attend_stream.cuh"

namespace mt {

// Brings PANELS panels in with the threads of `Intake`: copies are issued, evaluated values are stored at once. down, deep: how
// far each is from the one before it.
template <class Side, class Panel, class Intake, int PANELS, class Operand>
__device__ __forceinline__ void take_in(char* panel, const Operand& operand, int row0, int row_end, int k0, int down,
                                        int deep, int thread) {
#pragma unroll
  for (int i = 0; i < PANELS; ++i, panel += Panel::BYTES, row0 += down, k0 += deep) {
    if constexpr (Side::COPY == Copy::ASYNC) {
      Intake::issue(panel, operand, row0, row_end, k0, thread);
    } else {
      typename Intake::Held held;
      Intake::evaluate(held, operand, row0, row_end, k0, thread);
      Intake::put(panel, held, thread);
    }
  }
}

// One operand's way on chip, chunk after chunk of a slice. ROWS, DEEP: how far its panels are apart. Where its elements lie at
// constant distances a pointer moves on, which `settle` has found: half of the instructions of a chunk would find addresses else.
template <class Side, class Panel, class Intake, int PANELS, int ROWS, int DEEP, class Operand>
struct Supply {
  const Operand& operand;
  int row0, row_end, k0, thread;

  __device__ __forceinline__ Supply(const Operand& x, int row0, int row_end, int k0, int thread)
      : operand(x), row0(row0), row_end(row_end), k0(k0), thread(thread) {}
  __device__ __forceinline__ void begin(char* panel) const {
    take_in<Side, Panel, Intake, PANELS>(panel, operand, row0, row_end, k0, ROWS, DEEP, thread);
  }
  __device__ __forceinline__ void advance(int rows, int k) { row0 += rows, k0 += k; }
  __device__ __forceinline__ void settle() const {}
};
template <class Side, class Panel, class Intake, int PANELS, int ROWS, int DEEP, class T, int ROW_STEP, int K_STEP>
  requires(Intake::REGULAR && Side::COPY == Copy::ASYNC)
struct Supply<Side, Panel, Intake, PANELS, ROWS, DEEP, Linear<T, ROW_STEP, K_STEP>> {
  using Walk = typename Intake::template Walk<Linear<T, ROW_STEP, K_STEP>>;
  Walk walk;
  int thread;

  __device__ __forceinline__ Supply(const Linear<T, ROW_STEP, K_STEP>& x, int row0, int row_end, int k0, int thread)
      : walk(x, row0, row_end, k0, thread), thread(thread) {}
  __device__ __forceinline__ void begin(char* panel) const {
    Walk part = walk;
#pragma unroll
    for (int i = 0; i < PANELS; ++i, part.move(ROWS, DEEP)) part.issue(ptx::shared_address(panel) + i * Panel::BYTES, thread);
  }
  __device__ __forceinline__ void advance(int rows, int k) { walk.move(rows, k); }
  __device__ __forceinline__ void settle() { walk.from = ptx::anew(walk.from), walk.offset = ptx::anew(walk.offset); }
};

// The supplies of a slice's threads: queries for the whole block, keys and values from the slice's first chunk on. thread: the number
// within the slice.
template <class S, class Query, class Key, class Value>
struct Supplies {
  Supply<typename S::Query, typename S::QueryPanel, typename S::QueryIntake, S::FEATURE_PANELS, 0, S::DEEP, Query> queries;
  Supply<typename S::Key, typename S::KeyPanel, typename S::KeyIntake, S::FEATURE_PANELS, 0, S::DEEP, Key> keys;
  Supply<typename S::Value, typename S::ValuePanel, typename S::ValueIntake, S::COLUMN_PANELS, S::ACROSS, 0, Value> values;

  __device__ __forceinline__ Supplies(const Member<S>& self, int thread, int m0, int m1, const Query& query, const Key& key,
                                      const Value& value)
      : queries(query, m0, m1, 0, threadIdx.x),
        keys(key, self.first(0), S::KEYS, 0, thread),
        values(value, 0, S::COLUMNS, self.first(0), thread) {
    queries.settle(), keys.settle(), values.settle();
  }
};

}  // namespace mt
