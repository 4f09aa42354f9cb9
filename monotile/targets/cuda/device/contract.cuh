// One block of a product: out[m, n] = sum over k of left[m, k] * right[n, k].
//
// Split-K within the block: k is cut in chunks of BLOCK_K, and chunk c belongs to slice c % SLICES. The warps of a slice, WARPS_M *
// WARPS_N of them, hold sums for the whole block and share a pipeline, a ring buffer of DEPTH stages. The main loop has no barrier
// of the whole block. A slice of one warp needs `__syncwarp` alone, so that every warp continues as soon as its own copies land. At
// the end the slices' sums meet in shared memory. One ring for the whole block took 562 us for BERT's 48 products on an H100, this
// takes 290 us.
//
// Ping-pong: TEAMS teams of warps compute a block each, with a part of shared memory each. The copies and products of one go on
// while another waits or is in its epilogue.
//
// Prefetch of the next task: a worker with several tasks copies the first NEXT_TASK_CHUNKS chunks of the next one before it stores
// the sums of this one. The sums stay clear of these stages of the ring.
#pragma once
#include "cuda/device/contract_feed.cuh"
#include "cuda/device/contract_sums.cuh"
#include "cuda/device/product.cuh"

namespace mt {

inline constexpr int MOST_PREFETCHED_BYTES = 96;  // that a thread fetches ahead for its epilogue
// Steps of an epilogue that fetches nothing, in straight line; and where it has many steps.
inline constexpr int UNROLLED_STEPS = 3, UNROLLED_OF_MANY = 5;

// How many of `steps` iterations to unroll, at most `most`: the number that leaves the fewest of the last ones empty.
__host__ __device__ constexpr int even_unroll(int steps, int most) {
  int even = min_of(steps, most);
  for (int n = even - 1, half = (even + 1) / 2; n >= half; --n)
    if (ceil_div(steps, n) * n < ceil_div(steps, even) * even) even = n;
  return even;
}

// An epilogue that reads nothing besides the sums.
struct Nothing {};
struct NoFetch {
  __device__ __forceinline__ Nothing operator()(int, int) const { return {}; }
};

// The worker's tasks before and after this one. prefetched: the task before has copied the first S::NEXT_TASK_CHUNKS chunks of this
// one. more: there is a task after it. next(use) calls use(left, right, m0, m1, n0, n1) with the operands of that, or of any task
// if there is none.
template <class Next>
struct TaskSequence {
  bool prefetched, more;
  const Next& next;
};
template <class Next>
__device__ __forceinline__ TaskSequence<Next> task_sequence(bool prefetched, bool more, const Next& next) {
  return {prefetched, more, next};
}
struct SingleTask {
  static constexpr bool prefetched = false, more = false;
};

// For `await`, where there is nothing to wait for.
struct NoWait {
  __device__ __forceinline__ void operator()() const {}
};

// Computes rows [m0, m1) x columns [n0, n1) (at most a block) with all threads of a team. S: a `Product`.
//
// await: waits for the hand-off of the operands and of what `fetch` reads. All threads call it once; not for a task that is
// prefetched. Operands may be `Bounded`, both by the same end of k. epilogue(m, n, Pack<Sum, VECTOR>, fetched, valid): takes the sums, those of
// several products `Together`. fetched = fetch(m, n) is what else it reads; that
// is prefetched some steps ahead, at first while the operands are copied. Where not `valid` nothing may be stored: predicated
// stores instead of branches let the steps of the epilogue hide each other's latency. For rows at any alignment the epilogue is
// `UnalignedStores`; where rows are finished as wholes it is a `RowEpilogue`, and `fetch` fetches nothing. When this returns shared
// memory is free, but for the stages that hold chunks of the next task.
template <class S, class Left, class Right, class Await, class Fetch, class Epilogue, class Tasks = SingleTask>
__device__ __forceinline__ void contract(char* shared, int m0, int m1, int n0, int n1,
                                         const Left& left, const Right& right, const Await& await,
                                         const Fetch& fetch, const Epilogue& epilogue, const Tasks& tasks = {}) {
  using Core = typename S::Core;
  using Sum = typename S::Sum;
  constexpr int DEPTH = S::DEPTH;
  const unsigned all = ptx::recompute(threadIdx.x), own = S::TEAMS == 1 ? all : all % S::THREADS;
  int warp = ptx::uniform(own / 32), lane = own % 32;
  int slice = warp / S::SLICE_WARPS, member = warp % S::SLICE_WARPS;
  int warp_m = member / S::WARPS_N * S::WARP_M, warp_n = member % S::WARPS_N * S::WARP_N;
  if constexpr (S::KERNEL == Kernel::SPARSE)
    warp_n = member % S::WARPS_N * 16, warp_m = member / S::WARPS_N * S::WARP_M;
  else if constexpr (S::WARPGROUPS)
    warp_m = member % S::WARPS_M * 16, warp_n = member / S::WARPS_M * S::WARP_N;
  int barrier = 1 + slice;  // the named barrier of a slice
  if constexpr (S::TEAMS > 1) {
    int team = ptx::uniform(all / S::THREADS);
    barrier += team, shared += team * S::TEAM_BYTES;
  }

  int thread = int(own) - slice * S::SLICE_THREADS;
  char* ring = shared + slice * S::SLICE_BYTES;
  Feed<S, typename S::Left, typename S::LeftCopies, Left> left_feed(left, m0, m1, slice, thread);
  Feed<S, typename S::Right, typename S::RightCopies, Right> right_feed(right, n0, n1, slice, thread);
  auto begin = [&](char* to) {
    left_feed.begin(to);
    right_feed.begin(to + S::LeftPanel::BYTES);
  };
  auto finish = [&](char* to) {
    left_feed.finish(to);
    right_feed.finish(to + S::LeftPanel::BYTES);
  };
  typename Core::Accumulator acc;
  Core::clear(acc);
  char* rest = ring + DEPTH * S::STAGE_BYTES;  // of two, the one of this chunk
  auto places = places_of<S>(right, n0 + warp_n, n1, slice, lane);
  auto load = [&](const char* chunk) {
    if constexpr (S::RESTS) Core::load(acc, chunk, warp_m, lane);
    if constexpr (S::KERNEL == Kernel::SPARSE) {
      places.advance();
      if (!S::ENDS) places.put(acc);
    }
  };
  auto multiply = [&](const char* chunk) {
    if constexpr (S::RESTS)
      Core::step(acc, chunk + S::LeftPanel::BYTES, rest, warp_n);
    else
      Core::step(acc, chunk, chunk + S::LeftPanel::BYTES, warp_m, warp_n, lane);
  };
  int chunks = S::CHUNKS;
  if constexpr (IS_BOUNDED<Left>) chunks = ceil_div(left.k_end, S::BLOCK_K);
  int count = slice < chunks ? (chunks - slice + S::SLICES - 1) / S::SLICES : 0;

  constexpr int END = DEPTH * S::STAGE_BYTES;
  int to = 0, from = 0;  // stages of the ring: next to fill, next to use
  constexpr int FILL = S::EVALUATES_OPERANDS ? DEPTH - 1 : 0;  // iterations of the main loop that fill the ring and use no chunk yet
  if (S::NEXT_TASK_CHUNKS > 0 && tasks.prefetched) {
    left_feed.skip(S::NEXT_TASK_CHUNKS);
    right_feed.skip(S::NEXT_TASK_CHUNKS);
    to = S::NEXT_TASK_CHUNKS * S::STAGE_BYTES;
#pragma unroll 1
    for (int s = S::NEXT_TASK_CHUNKS; s < DEPTH - 1; ++s, to += S::STAGE_BYTES) {
      if (s < count) begin(ring + to);
      ptx::copy_async_commit();
    }
  } else if constexpr (FILL == 0 && decltype(left_feed)::WALKS && decltype(right_feed)::WALKS) {
    fill<S>(left_feed, right_feed, ring, count, await);
    to = END - S::STAGE_BYTES;
  } else {
    constexpr int LEFT = PREFETCHED_CHUNKS<S, typename S::Left>, RIGHT = PREFETCHED_CHUNKS<S, typename S::Right>;
#pragma unroll 1
    for (int s = 0; s < min_of(max_of(LEFT, RIGHT), count); ++s) {
      if (s < LEFT) left_feed.begin(ring + s * S::STAGE_BYTES);
      if (s < RIGHT) right_feed.begin(ring + s * S::STAGE_BYTES + S::LeftPanel::BYTES);
    }
    await();
#pragma unroll 1
    for (int s = FILL; s < DEPTH - 1; ++s, to += S::STAGE_BYTES) {
      if (s < count) {
        if (s >= LEFT) left_feed.begin(ring + to);
        if (s >= RIGHT) right_feed.begin(ring + to + S::LeftPanel::BYTES);
      }
      ptx::copy_async_commit();
    }
  }

  // The epilogue takes the vectors of the block in order: neighbouring threads store neighbours.
  using Fetched = decltype(fetch(0, 0));
  constexpr int ROW_VECTORS = S::ROW_VECTORS, TOTAL = S::ROWS * ROW_VECTORS;
  constexpr int STEPS = ceil_div(TOTAL, S::EPILOGUE_THREADS);
  constexpr int MOST = same<Fetched, Nothing> ? (STEPS > 8 ? UNROLLED_OF_MANY : UNROLLED_STEPS)
                                              : max_of(1, MOST_PREFETCHED_BYTES / int(sizeof(Fetched)));
  constexpr int UNROLL = even_unroll(STEPS, MOST);  // steps whose operands are on their way at once
  constexpr bool UNALIGNED = IS_UNALIGNED<Epilogue>;  // then the last vector may be incomplete, and a block may have no vector at all
  constexpr bool BY_ROW = IS_BY_ROW<Epilogue>;
  static_assert(!BY_ROW || same<Fetched, Nothing>, "An epilogue by rows asks for what it reads itself.");
  static_assert(S::PRODUCTS == 1 || (!BY_ROW && !UNALIGNED), "Sums of several products are finished element by element.");
  Fetched fetched[UNROLL];
  const int vectors_end = UNALIGNED ? n1 - (n1 - n0) % S::VECTOR : n1;
  auto position = [&](int step) {
    unsigned e = step * S::EPILOGUE_THREADS + own;
    int m = int(e / ROW_VECTORS), n = int(e % ROW_VECTORS) * S::VECTOR;
    if constexpr (S::FIXED_COLUMNS)
      m = step * (S::EPILOGUE_THREADS / ROW_VECTORS) + int(own / ROW_VECTORS), n = int(own % ROW_VECTORS) * S::VECTOR;
    bool whole = TOTAL % S::EPILOGUE_THREADS == 0 && STEPS % UNROLL == 0;
    bool exists = (whole || e < TOTAL) && (S::EPILOGUE_THREADS == S::THREADS || own < S::EPILOGUE_THREADS);
    constexpr bool CHECK_COLUMNS = S::Right::CHECK_ROWS || UNALIGNED;
    bool inside = (!S::Left::CHECK_ROWS || m0 + m < m1) && (!CHECK_COLUMNS || n0 + n < vectors_end);
    bool valid = exists && inside;
    return Position{valid ? m : 0, valid ? n : 0, valid};  // any address will do for a load that nothing uses
  };
  if constexpr (BY_ROW) {
    epilogue.ahead();
  } else {
#pragma unroll
    for (int i = 0; i < UNROLL; ++i)
      if (Position p = position(i); !UNALIGNED || p.valid) fetched[i] = fetch(m0 + p.m, n0 + p.n);
  }

  NextTask<S, decltype(left_feed), decltype(right_feed)> next_task{ring, slice, thread, left_feed, right_feed};
  constexpr bool CONTINUES = next_task.CONTINUES;
  if constexpr (CONTINUES) tasks.next(next_task);
  const int wanted = count + (CONTINUES && tasks.more ? S::NEXT_TASK_CHUNKS : 0);  // chunks, with those of the next task
  // Of chunk t, at `from`, the copies of this thread are in, and what it has copied is as the products take it.
  auto arrive = [&](int t) {
    ptx::copy_async_wait<max_of(0, DEPTH - 2 - S::IN_FLIGHT)>();
    if constexpr (S::ROUNDS_TO_TF32) {
      if constexpr (!S::Left::ROUNDED) S::LeftCopies::round(ring + from, thread);
      if constexpr (!S::Right::ROUNDED) S::RightCopies::round(ring + from + S::LeftPanel::BYTES, thread);
    }
    if constexpr (S::RESTS) {
      rest = ring + DEPTH * S::STAGE_BYTES + (t & 1) * S::REST_BYTES;
      S::RightCopies::rest(rest, ring + from + S::LeftPanel::BYTES, thread);
    }
    if constexpr (S::WARPGROUPS) ptx::fence_async();
  };
  // Sums that are promoted end in the iteration that begins them, while the next chunk arrives: what is carried over while it is under way
  // may be moved, for which ptxas serialises every wgmma (C7515). They are added when the others' products are done as well, while the next
  // fragments are loaded. Behind the last chunk the next one's stage is looked at for nothing.
  constexpr bool ENDS = S::ENDS;
  // What a warp knows of the next chunk before its products are done is no such sum: it is loaded meanwhile, if no stage that they read is refilled.
  constexpr bool LOADS_FIRST = S::KERNEL == Kernel::SPARSE && (S::IN_FLIGHT > 0 || S::FILLED_ONCE);
  if constexpr (ENDS) {
    arrive(0);
    warps_barrier<S::SLICE_WARPS>(barrier);
    load(ring + from);
    if constexpr (S::KERNEL == Kernel::SPARSE) places.put(acc);
  }
#pragma unroll 1
  for (int t = -FILL; t < count; ++t) {
    if constexpr (DEPTH == 1) {
      warps_barrier<S::SLICE_WARPS>(barrier);  // the chunk before is used up
      begin(ring);
      finish(ring);
      ptx::copy_async_commit();
      ptx::copy_async_wait<0>();
      warps_barrier<S::SLICE_WARPS>(barrier);
      load(ring);
      multiply(ring);
      Core::finish(acc);
    } else {
      bool full = FILL == 0 || t >= 0;
      if (full) {
        if constexpr (!ENDS) {
          arrive(t);
          if constexpr (S::WARPGROUPS && FILL == 0 && !S::FILLED_ONCE && S::IN_FLIGHT == 0) Core::finish(acc);
          warps_barrier<S::SLICE_WARPS>(barrier);  // chunk t is in, chunk t - 1 - IN_FLIGHT is used up
          load(ring + from);
        }
      }
      bool refills = !S::FILLED_ONCE && t >= S::IN_FLIGHT - FILL;
      if constexpr (CONTINUES) {
        bool ends = t + DEPTH - 1 - S::IN_FLIGHT == count;
        left_feed.replace_if(ends, next_task.left_feed);
        right_feed.replace_if(ends, next_task.right_feed);
      }
      bool more = refills && t + DEPTH - 1 - S::IN_FLIGHT < wanted;
      // Tensor cores that read the ring themselves work while the next copies are issued and waited for.
      if (S::WARPGROUPS && full) multiply(ring + from);
      if (S::WARPGROUPS && FILL > 0 && full) Core::finish(acc);  // with much other code in between ptxas serialises wgmma (C7514)
      if constexpr (S::IN_FLIGHT > 0 && !ENDS) Core::template finish<S::IN_FLIGHT>(acc);
      if (more) begin(ring + to);
      ptx::copy_async_commit();
      if (!S::WARPGROUPS && full) multiply(ring + from);
      if (more) finish(ring + to);
      if (refills) to = to + S::STAGE_BYTES == END ? 0 : to + S::STAGE_BYTES;
      if (full) from = from + S::STAGE_BYTES == END ? 0 : from + S::STAGE_BYTES;
      if constexpr (ENDS) {
        arrive(t + 1);
        if constexpr (!LOADS_FIRST) Core::wait(acc);
        warps_barrier<S::SLICE_WARPS>(barrier);
        load(ring + from);
        if constexpr (LOADS_FIRST) Core::wait(acc);
        if constexpr (S::KERNEL == Kernel::SPARSE)
          places.put(acc);
        else
          Core::promote(acc);
      }
    }
  }
  if constexpr (S::WARPGROUPS && FILL == 0 && DEPTH > 1 && !ENDS) Core::finish(acc);

  // Every slice arrives equally often: compute-sanitizer's racecheck orders threads by how many barriers they passed.
  if constexpr (S::SLICE_WARPS > 1 && (IS_BOUNDED<Left> ? S::SLICES > 1 : S::CHUNKS % S::SLICES != 0)) {
    for (int t = count * (DEPTH == 1 ? 2 : 1); t < ceil_div(chunks, S::SLICES) * (DEPTH == 1 ? 2 : 1); ++t)
      warps_barrier<S::SLICE_WARPS>(barrier);
  }

  if constexpr (!CONTINUES) ptx::copy_async_wait<0>();
  S::barrier();  // all rings are used up: the sums may overwrite them
  if constexpr (S::NEXT_TASK_CHUNKS > 0 && !CONTINUES) {
    if (tasks.more) tasks.next(next_task);
  }
  Sum* sums = reinterpret_cast<Sum*>(shared + S::SUMS_OFFSET);
  constexpr int SLICE_SUMS = S::BLOCK_M * S::SUM_PITCH;
#pragma unroll
  for (int i = 0; i < Core::FRAGMENTS; ++i) {
    int at = slice * SLICE_SUMS + (warp_m + Core::row(i, lane)) * S::SUM_PITCH + warp_n + Core::column(i, lane);
    if (Core::keeps(i, lane)) store(sums + at, Core::fragment(acc, i));
  }
  S::barrier();
  if constexpr (BY_ROW) {
    epilogue.rows(sums);
  } else {
#pragma unroll 1
    for (int step = 0; step < STEPS; step += UNROLL) {
      Pack<Sum, S::VECTOR> taken[UNROLL];  // unaligned: no load of sums is moved before a store into a cell
      if constexpr (UNALIGNED) {
#pragma unroll
        for (int i = 0; i < UNROLL; ++i)
          if (Position p = position(step + i); p.valid) taken[i] = total<S, S::VECTOR>(sums + p.m * S::SUM_PITCH + p.n);
      }
#pragma unroll
      for (int i = 0; i < UNROLL; ++i) {
        if (Position p = position(step + i); !UNALIGNED || p.valid) {
          Sum* at = sums + p.m * S::SUM_PITCH + p.n;
          if constexpr (UNALIGNED)
            epilogue.vectors(m0 + p.m, n0 + p.n, taken[i], fetched[i], true, reinterpret_cast<char*>(at));
          else
            epilogue(m0 + p.m, n0 + p.n, totals<S>(at), fetched[i], p.valid);
        }
        if (step + UNROLL < STEPS)
          if (Position p = position(step + UNROLL + i); !UNALIGNED || p.valid) fetched[i] = fetch(m0 + p.m, n0 + p.n);
      }
    }
  }
  if constexpr (UNALIGNED) store_unaligned<S>(sums, m0, m1, n0, n1, epilogue);
  S::barrier();
}

template <class S, class Left, class Right, class Epilogue>
__device__ __forceinline__ void contract(char* shared, int m0, int m1, int n0, int n1,
                                         const Left& left, const Right& right,
                                         const Epilogue& epilogue) {
  contract<S>(
      shared, m0, m1, n0, n1, left, right, NoWait{}, [](int, int) { return Nothing{}; },
      [&](int m, int n, const Pack<typename S::Sum, S::VECTOR>& sums, Nothing, bool valid) {
        if (valid) epilogue(m, n, sums);
      });
}

}  // namespace mt
