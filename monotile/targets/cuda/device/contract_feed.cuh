// How a product's operands come into the pipeline: those of a task before and during its main loop, and the first chunks of the
// next task. S: the `Product`.
#pragma once
#include "cuda/device/contract_sparse.cuh"
#include "cuda/device/panel.cuh"

namespace mt {

// Brings one operand into the ring, chunk after chunk of one slice. Copies are issued; evaluated values go to registers first.
template <class S, class Side, class Copies, class Operand>
struct Feed {
  const Operand& operand;
  int row0, row_end, k, thread;
  typename Copies::Values values;
  typename Copies::UnalignedValues unaligned;

  __device__ __forceinline__ Feed(const Operand& x, int row0, int row_end, int slice, int thread)
      : operand(x), row0(row0), row_end(row_end), k(slice * Copies::CHUNK), thread(thread) {}
  static constexpr bool WALKS = false;
  __device__ __forceinline__ void begin(char* panel) {
    if constexpr (Side::COPY == Copy::ASYNC)
      Copies::issue(panel, operand, row0, row_end, k, thread);
    else if constexpr (Side::COPY == Copy::UNALIGNED)
      Copies::load(unaligned, operand, row0, row_end, k, thread);
    else
      Copies::evaluate(values, operand, row0, row_end, k, thread);
    k += S::SLICES * Copies::CHUNK;
  }
  __device__ __forceinline__ void skip(int chunks) { k += chunks * (S::SLICES * Copies::CHUNK); }
  __device__ __forceinline__ void finish(char* panel) {
    if constexpr (Side::COPY == Copy::ELEMENT) Copies::store(panel, values, thread);
    if constexpr (Side::COPY == Copy::UNALIGNED) Copies::store(panel, unaligned, thread);
  }
};
template <class S, class Side, class Copies, class Operand>
  requires(Copies::WALKED && Side::COPY == Copy::ASYNC && IS_LINEAR<Operand>)
struct Feed<S, Side, Copies, Operand> {
  using Walk = typename Copies::template Walk<Operand, Side::EVICT_FIRST>;
  static constexpr bool WALKS = true;
  static constexpr int DISTANCE = S::SLICES * Copies::CHUNK;
  Walk walk;
  int thread;

  __device__ __forceinline__ Feed(const Operand& x, int row0, int row_end, int slice, int thread)
      : walk(x, row0, row_end, slice * Copies::CHUNK, thread), thread(thread) {}
  __device__ __forceinline__ void begin(char* panel) {
    walk.issue(ptx::shared_address(panel), thread);
    walk.advance(DISTANCE);
  }
  __device__ __forceinline__ void skip(int chunks) { walk.advance(chunks * DISTANCE); }
  __device__ __forceinline__ void replace_if(bool condition, const Feed& other) { walk.replace_if(condition, other.walk); }
  __device__ __forceinline__ void finish(char*) {}
};

// Of a sparse operand the values: the warps that multiply them look up their places.
template <class S, class Side, class Copies, class Values, class Places>
struct Feed<S, Side, Copies, Sparse<Values, Places>> : Feed<S, Side, Copies, Values> {
  __device__ __forceinline__ Feed(const Sparse<Values, Places>& x, int row0, int row_end, int slice, int thread)
      : Feed<S, Side, Copies, Values>(x.values, row0, row_end, slice, thread) {}
};

// How many of an operand's first chunks are copied before `await`. Evaluated operands wait.
template <class S, class Side>
inline constexpr int PREFETCHED_CHUNKS = S::EVALUATES_OPERANDS ? 0 : min_of(Side::PREFETCHED_CHUNKS, S::DEPTH - 1);

// Copies the first chunks of one operand, of which PREFETCHED before `await`. The loop is unrolled by two: more is much code to
// compile.
template <class S, class Feed, int PREFETCHED>
struct FirstChunks {
  static constexpr int CHUNKS = S::DEPTH - 1, UNROLL = 2;
  static_assert(PREFETCHED % UNROLL == 0 || PREFETCHED == CHUNKS, "The prefetched chunks are a multiple of two, or all first chunks.");
  Feed& feed;
  typename Feed::Walk::Starts starts;
  int count;

  __device__ __forceinline__ FirstChunks(Feed& feed, u32 to, int count) : feed(feed), starts(feed.walk.starts(to)), count(count) {}
  __device__ __forceinline__ void prefetch() {
#pragma unroll 1
    for (int s = 0; s < PREFETCHED; s += UNROLL) {
#pragma unroll
      for (int i = 0; i < UNROLL; ++i)
        if (s + i < PREFETCHED) issue(s, i);
      advance();
    }
  }
  // Chunk s + i, unless it is prefetched.
  __device__ __forceinline__ void copy(int s, int i) const {
    if (s >= PREFETCHED) issue(s, i);
  }
  // After chunks s to s + UNROLL - 1.
  __device__ __forceinline__ void advance_from(int s) {
    if (s >= PREFETCHED) advance();
  }

 private:
  __device__ __forceinline__ void issue(int s, int i) const {
    if (s + i < count) feed.walk.issue(starts, feed.thread, i * Feed::DISTANCE, i * S::STAGE_BYTES);
  }
  __device__ __forceinline__ void advance() { starts.advance(UNROLL * Feed::DISTANCE, UNROLL * S::STAGE_BYTES); }
};

// Copies the first chunks of both operands, which fill all stages of the ring but the last. Before `await` is called the addresses are
// computed and the prefetches issued. Groups of copies end in order, so the prefetches may all belong to the first.
template <class S, class Left, class Right, class Await>
__device__ __forceinline__ void fill(Left& left, Right& right, char* ring, int count, const Await& await) {
  constexpr int CHUNKS = S::DEPTH - 1, UNROLL = 2;
  u32 to = ptx::shared_address(ring);
  FirstChunks<S, Left, PREFETCHED_CHUNKS<S, typename S::Left>> a(left, to, count);
  FirstChunks<S, Right, PREFETCHED_CHUNKS<S, typename S::Right>> b(right, to + S::LeftPanel::BYTES, count);
  a.prefetch();
  b.prefetch();
  await();
#pragma unroll 1
  for (int s = 0; s < CHUNKS; s += UNROLL) {
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
      if (CHUNKS % UNROLL != 0 && s + i >= CHUNKS) break;
      a.copy(s, i);
      b.copy(s, i);
      ptx::copy_async_commit();
    }
    a.advance_from(s);
    b.advance_from(s);
  }
  left.walk.advance(CHUNKS * Left::DISTANCE);
  right.walk.advance(CHUNKS * Right::DISTANCE);
}

// Prefetches the first chunks of the worker's next task. Where these continue this task's in the ring, the feeds of the next task
// replace this one's, which have the same type: without a branch, behind which ptxas would serialise the wgmma that are under way
// (C7515).
template <class S, class LeftFeed, class RightFeed>
struct NextTask {
  static constexpr bool CONTINUES = S::CONTINUES && LeftFeed::WALKS && RightFeed::WALKS;
  char* ring;
  int slice, thread;
  LeftFeed left_feed;
  RightFeed right_feed;

  template <class Left, class Right>
  __device__ __forceinline__ void operator()(const Left& left, const Right& right, int m0, int m1, int n0, int n1) {
    Feed<S, typename S::Left, typename S::LeftCopies, Left> a(left, m0, m1, slice, thread);
    Feed<S, typename S::Right, typename S::RightCopies, Right> b(right, n0, n1, slice, thread);
    if constexpr (CONTINUES) {
      left_feed = a, right_feed = b;
    } else {
#pragma unroll 1
      for (int s = 0; s < S::NEXT_TASK_CHUNKS; ++s) {
        a.begin(ring + s * S::STAGE_BYTES);
        b.begin(ring + s * S::STAGE_BYTES + S::LeftPanel::BYTES);
        ptx::copy_async_commit();
      }
    }
  }
};

}  // namespace mt
