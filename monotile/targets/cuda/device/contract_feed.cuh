// How operands come into a contraction's rings: those of a block before and during its main loop, and the first of the block after it.
// S: the `Shape`.
#pragma once
#include "cuda/device/panel.cuh"

namespace mt {

// One side's way into the ring, chunk after chunk of one slice: copies are issued, evaluated values go to registers.
template <class S, class Side, class Intake, class Operand>
struct Feed {
  const Operand& operand;
  int row0, row_end, k, thread;
  typename Intake::Held held;

  __device__ __forceinline__ Feed(const Operand& x, int row0, int row_end, int slice, int thread)
      : operand(x), row0(row0), row_end(row_end), k(slice * Intake::CHUNK), thread(thread) {}
  static constexpr bool WALKS = false;
  __device__ __forceinline__ void begin(char* panel) {
    if constexpr (Side::COPY == Copy::ASYNC)
      Intake::issue(panel, operand, row0, row_end, k, thread);
    else
      Intake::evaluate(held, operand, row0, row_end, k, thread);
    k += S::SLICES * Intake::CHUNK;
  }
  __device__ __forceinline__ void skip(int chunks) { k += chunks * (S::SLICES * Intake::CHUNK); }
  __device__ __forceinline__ void finish(char* panel) {
    if constexpr (Side::COPY == Copy::ELEMENT) Intake::put(panel, held, thread);
  }
};
template <class S, class Side, class Intake, class T, int ROW_STEP, int K_STEP>
  requires(Intake::REGULAR)
struct Feed<S, Side, Intake, Linear<T, ROW_STEP, K_STEP>> {
  using Walk = typename Intake::template Walk<Linear<T, ROW_STEP, K_STEP>, Side::ONCE>;
  static constexpr bool WALKS = true;
  static constexpr int DISTANCE = S::SLICES * Intake::CHUNK;
  Walk walk;
  int thread;

  __device__ __forceinline__ Feed(const Linear<T, ROW_STEP, K_STEP>& x, int row0, int row_end, int slice, int thread)
      : walk(x, row0, row_end, slice * Intake::CHUNK, thread), thread(thread) {}
  __device__ __forceinline__ void begin(char* panel) {
    walk.issue(ptx::shared_address(panel), thread);
    walk.advance(DISTANCE);
  }
  __device__ __forceinline__ void skip(int chunks) { walk.advance(chunks * DISTANCE); }
  __device__ __forceinline__ void change(bool now, const Feed& other) { walk.change(now, other.walk); }
  __device__ __forceinline__ void finish(char*) {}
};

// How many of a side's first chunks are asked for before `await`. Evaluated operands wait.
template <class S, class Side>
inline constexpr int EARLY = S::EVALUATES ? 0 : min_of(Side::AHEAD, S::RING - 1);

// The first chunks of one side, in turns of two in straight line (more are much code for the compiler); EARLY: before `await`.
template <class S, class Feed, int EARLY>
struct Filling {
  static constexpr int CHUNKS = S::RING - 1, TURN = 2;
  static_assert(EARLY % TURN == 0 || EARLY == CHUNKS, "whole turns");
  Feed& feed;
  typename Feed::Walk::Starts starts;
  int count;

  __device__ __forceinline__ Filling(Feed& feed, u32 to, int count) : feed(feed), starts(feed.walk.starts(to)), count(count) {}
  __device__ __forceinline__ void begin() {
#pragma unroll 1
    for (int s = 0; s < EARLY; s += TURN) {
#pragma unroll
      for (int i = 0; i < TURN; ++i)
        if (s + i < EARLY) issue(s, i);
      advance();
    }
  }
  __device__ __forceinline__ void chunk(int s, int i) const {
    if (s >= EARLY) issue(s, i);
  }
  __device__ __forceinline__ void turn(int s) {
    if (s >= EARLY) advance();
  }

 private:
  __device__ __forceinline__ void issue(int s, int i) const {
    if (s + i < count) feed.walk.issue(starts, feed.thread, i * Feed::DISTANCE, i * S::STAGE_BYTES);
  }
  __device__ __forceinline__ void advance() { starts.advance(TURN * Feed::DISTANCE, TURN * S::STAGE_BYTES); }
};

// The first chunks of both sides: all but the ring's last stage. Before `await` is called addresses are found and the early copies
// begin. Groups of copies end in order, so these may all belong to the first.
template <class S, class Left, class Right, class Await>
__device__ __forceinline__ void fill(Left& left, Right& right, char* ring, int count, const Await& await) {
  constexpr int CHUNKS = S::RING - 1, TURN = 2;
  u32 to = ptx::shared_address(ring);
  Filling<S, Left, EARLY<S, typename S::Left>> a(left, to, count);
  Filling<S, Right, EARLY<S, typename S::Right>> b(right, to + S::LeftPanel::BYTES, count);
  a.begin();
  b.begin();
  await();
#pragma unroll 1
  for (int s = 0; s < CHUNKS; s += TURN) {
#pragma unroll
    for (int i = 0; i < TURN; ++i) {
      if (CHUNKS % TURN != 0 && s + i >= CHUNKS) break;
      a.chunk(s, i);
      b.chunk(s, i);
      ptx::copy_async_commit();
    }
    a.turn(s);
    b.turn(s);
  }
  left.walk.advance(CHUNKS * Left::DISTANCE);
  right.walk.advance(CHUNKS * Right::DISTANCE);
}

// What asks for the first chunks of a block that follows another. Where the ring goes on with it (feeds that walk have one type) it takes
// the place of this block's feeds: with no branch, behind which products that are under way would be serialised (C7515).
template <class S, class LeftFeed, class RightFeed>
struct Following {
  static constexpr bool GOES_ON = S::STREAMS && LeftFeed::WALKS && RightFeed::WALKS;
  char* ring;
  int slice, thread;
  LeftFeed left_feed;
  RightFeed right_feed;

  template <class Left, class Right>
  __device__ __forceinline__ void operator()(const Left& left, const Right& right, int m0, int m1, int n0, int n1) {
    Feed<S, typename S::Left, typename S::LeftIntake, Left> a(left, m0, m1, slice, thread);
    Feed<S, typename S::Right, typename S::RightIntake, Right> b(right, n0, n1, slice, thread);
    if constexpr (GOES_ON) {
      left_feed = a, right_feed = b;
    } else {
#pragma unroll 1
      for (int s = 0; s < S::FOLLOWING; ++s) {
        a.begin(ring + s * S::STAGE_BYTES);
        b.begin(ring + s * S::STAGE_BYTES + S::LeftPanel::BYTES);
        ptx::copy_async_commit();
      }
    }
  }
};

}  // namespace mt
