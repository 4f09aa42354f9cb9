// One block of a contraction: out[m, n] = sum over k of left[m, k] * right[n, k].
//
// warps = WARPS_M * WARPS_N * SLICES. K is cut in chunks of BLOCK_K; chunk c belongs to slice c % SLICES, whose warps hold
// sums for the whole block and share a ring of RING chunks. No barrier of the whole block stands in the main loop: a slice of
// one warp needs `__syncwarp` alone, so every warp runs ahead as its own copies land. At the end the slices' sums meet in
// shared memory. Measured against a ring shared by the whole block: 290 for 562 us over BERT's 48 products (H100).
//
// Or the threads are TEAMS teams, which compute a block each, with a part of shared memory each: one's copies and products go on while
// another waits or finishes its sums. Or a worker with several blocks asks for the FOLLOWING first chunks of the next one before it
// stores the sums of this one, which stay clear of these stages of the ring.
#pragma once
#include "cuda/device/barrier.cuh"
#include "cuda/device/contract_feed.cuh"
#include "cuda/device/contract_fma.cuh"
#include "cuda/device/contract_mma.cuh"
#include "cuda/device/contract_runs.cuh"
#include "cuda/device/contract_sums.cuh"
#include "cuda/device/contract_wgmma.cuh"

namespace mt {

// Side of a contraction. VECTOR: elements a copy moves. AHEAD: chunks that may be asked for before others have handed over what
// they made, which is not among them. ROWS: that a task has at most, if fewer than a block. ONCE: it leaves the
// last-level cache before what others may ask for again.
inline constexpr int ALL_ROWS = 1 << 20;
template <class T_, bool K_MAJOR_, Copy COPY_, int VECTOR_, bool CHECK_ROWS_, int AHEAD_ = 0, int ROWS_ = ALL_ROWS, bool ONCE_ = false>
struct Side {
  using T = T_;
  static constexpr bool K_MAJOR = K_MAJOR_;
  static constexpr Copy COPY = COPY_;
  static constexpr int VECTOR = VECTOR_;
  static constexpr bool CHECK_ROWS = CHECK_ROWS_;  // a task may reach over the last row
  static constexpr int AHEAD = AHEAD_, ROWS = ROWS_;
  static constexpr bool ONCE = ONCE_;
};

enum class Kernel { MMA, FMA, WGMMA, RUNS };

inline constexpr int MOST_HELD = 96;  // bytes a thread fetches ahead for its epilogue
inline constexpr int MOST_TURNS = 3, MANY_TURNS = 5;  // of the epilogue in straight line that fetch nothing; where there are many

// RUNS: of columns, each of which has a part of its own of what the left side has for a k: see `Runs`.
template <Kernel KERNEL, class Left_, class Right_, class Sum_, int K_, int BLOCK_M_, int BLOCK_N_,
          int BLOCK_K_, int WARPS_M_, int WARPS_N_, int SLICES_, int RING_, int WIDTH_, int TEAMS_ = 1, int RUNS_ = 1, int PART_ = 1,
          int FOLLOWING_ = 0>
struct Shape {
  using Left = Left_;
  using Right = Right_;
  using T = typename Left::T;
  static_assert(same<T, typename Right::T>, "both sides of a contraction have one element type");
  static constexpr int K = K_;
  static constexpr int BLOCK_M = BLOCK_M_, BLOCK_N = BLOCK_N_, BLOCK_K = BLOCK_K_;
  static constexpr int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, SLICES = SLICES_, RING = RING_;
  static constexpr int ROWS = min_of(Left::ROWS, BLOCK_M), COLUMNS = min_of(Right::ROWS, BLOCK_N);
  static constexpr int WIDTH = WIDTH_;  // sums along n that the epilogue takes at once
  static constexpr int CHUNKS = ceil_div(K, BLOCK_K);
  static constexpr int LEFT_K = K * RUNS_, LEFT_DEPTH = BLOCK_K * RUNS_;
  static constexpr int SLICE_WARPS = WARPS_M * WARPS_N, SLICE_THREADS = SLICE_WARPS * 32;
  static constexpr int THREADS = SLICE_THREADS * SLICES, TEAMS = TEAMS_;  // THREADS: of a team
  static constexpr int WARP_M = BLOCK_M / WARPS_M, WARP_N = BLOCK_N / WARPS_N;
  static_assert(BLOCK_M % WARPS_M == 0 && BLOCK_N % WARPS_N == 0, "warps share a block evenly");
  static_assert(SLICE_WARPS == 1 || SLICES < 16, "a block has 15 named barriers");
  static_assert(TEAMS == 1 || SLICES == 1, "a team has one barrier");
  static_assert(BLOCK_N % WIDTH == 0, "a row of a block is a whole number of stores");

  using LeftPanel = Panel<T, BLOCK_M, LEFT_DEPTH, Left::K_MAJOR, KERNEL == Kernel::RUNS>;
  using RightPanel = Panel<T, BLOCK_N, BLOCK_K, Right::K_MAJOR>;
  using LeftIntake = Intake<LeftPanel, T, Left::K_MAJOR, Left::COPY, Left::VECTOR, ROWS, LEFT_K,
                            LEFT_DEPTH, SLICE_THREADS, Left::CHECK_ROWS>;
  using RightIntake = Intake<RightPanel, T, Right::K_MAJOR, Right::COPY, Right::VECTOR, COLUMNS, K,
                             BLOCK_K, SLICE_THREADS, Right::CHECK_ROWS>;

  template <Kernel, class = void>
  struct Pick {
    using type = Mma<T, WARP_M, WARP_N, BLOCK_K, LeftPanel, Left::K_MAJOR, RightPanel, Right::K_MAJOR>;
  };
  template <class V>
  struct Pick<Kernel::FMA, V> {
    using type =
        Fma<T, Sum_, WARP_M, WARP_N, BLOCK_K, LeftPanel, Left::K_MAJOR, RightPanel, Right::K_MAJOR>;
  };
  template <class V>
  struct Pick<Kernel::WGMMA, V> {
    static_assert(WARPS_M % 4 == 0 && Left::K_MAJOR, "warpgroups of 64 rows");
    static_assert(LeftPanel::BYTES % 1024 == 0 && RightPanel::BYTES % 1024 == 0, "panels begin at multiples of 1024 bytes");
    using type = Wgmma<T, WARP_M, WARPS_M * 16, WARP_N, BLOCK_K, LeftPanel, RightPanel, Right::K_MAJOR>;
  };
  template <class V>
  struct Pick<Kernel::RUNS, V> {
    static_assert(Left::K_MAJOR && Right::K_MAJOR, "lines along k");
    using type = Runs<T, WARP_M, WARP_N, BLOCK_K, LeftPanel, RightPanel, BLOCK_N / RUNS_, PART_, RUNS_ * PART_>;
  };
  static constexpr bool GROUPS = KERNEL == Kernel::WGMMA;  // operands are read by warpgroups
  // Evaluated operands are much code: there, and of scalar products, the rings are filled in turns of the main loop.
  static constexpr bool EVALUATES = KERNEL == Kernel::FMA || Left::COPY == Copy::ELEMENT || Right::COPY == Copy::ELEMENT;
  static constexpr int FOLLOWING = EVALUATES ? 0 : FOLLOWING_;  // what is evaluated would be on its way in registers
  static_assert(FOLLOWING == 0 || (SLICES == 1 && TEAMS == 1 && FOLLOWING < RING && FOLLOWING <= CHUNKS), "chunks of one ring");
  // Whether the ring has room for all chunks of a slice: then it is filled once.
  static constexpr bool WHOLE = !EVALUATES && ceil_div(CHUNKS, SLICES) < RING;
  // How many chunks' products are under way when those of the next begin: their stages are filled so much later.
  static constexpr int BEHIND = GROUPS && !EVALUATES && !WHOLE && RING > 3 ? 1 : 0;
  // Whether the ring goes on with a following block's chunks where this one's end, at its first stage.
  static constexpr bool STREAMS = FOLLOWING > 0 && !WHOLE && CHUNKS % RING == 0;
  static_assert(!STREAMS || FOLLOWING < RING - BEHIND, "no more than are asked for in the main loop");
  using Core = typename Pick<KERNEL>::type;
  using Sum = typename Core::Sum;

  // The threads of the epilogue: those of whole rows of vectors, if few others are idle for that. A thread then has the same columns
  // in all its turns.
  static constexpr int ACROSS = ceil_div(COLUMNS, WIDTH), OTHERS = THREADS % ACROSS;
  static constexpr bool STEADY_COLUMNS = ACROSS <= THREADS && 8 * OTHERS <= THREADS;
  static constexpr int FINISHERS = STEADY_COLUMNS ? THREADS - OTHERS : THREADS;

  // Where the slices' sums meet. The pitch keeps the fragments' stores free of bank conflicts.
  static constexpr int SUM_PITCH = BLOCK_N + (BLOCK_N % 16 == 0 ? 8 : 0);
  static constexpr int STAGE_BYTES = LeftPanel::BYTES + RightPanel::BYTES;
  static_assert(STAGE_BYTES % 128 == 0 && LeftPanel::BYTES % 128 == 0 || KERNEL == Kernel::FMA,
                "panels begin at multiples of 128 bytes");
  static constexpr int RING_BYTES = SLICES * RING * STAGE_BYTES;
  static constexpr int SUMS_AT = FOLLOWING * STAGE_BYTES;
  static constexpr int SUM_BYTES = SUMS_AT + SLICES * BLOCK_M * SUM_PITCH * int(sizeof(Sum));
  static constexpr int TEAM_BYTES = ceil_div(max_of(RING_BYTES, SUM_BYTES), 1024) * 1024;
  static constexpr int BYTES = TEAMS > 1 ? TEAMS * TEAM_BYTES : max_of(RING_BYTES, SUM_BYTES);

  // The number of a thread within its team.
  static __device__ __forceinline__ unsigned self() { return TEAMS == 1 ? threadIdx.x : threadIdx.x % THREADS; }
  // The threads of a team wait for each other.
  static __device__ __forceinline__ void barrier() {
    if constexpr (TEAMS == 1)
      block_barrier();
    else
      warps_barrier<SLICE_WARPS>(1 + threadIdx.x / THREADS);
  }
};

// How many of `rounds` turns to take at once, at most `most`: so that as few as can be are empty.
__host__ __device__ constexpr int even_turns(int rounds, int most) {
  int even = min_of(rounds, most);
  for (int n = even - 1, half = (even + 1) / 2; n >= half; --n)
    if (ceil_div(rounds, n) * n < ceil_div(rounds, even) * even) even = n;
  return even;
}

// What the epilogue reads besides the sums, if nothing.
struct Nothing {};

// What a worker's block has to do with those before and after it. begun: its first S::FOLLOWING chunks were asked for with the block
// before. more: whether there is one after it; next(use) calls use(left, right, m0, m1, n0, n1) of that, or of any if there is none.
template <class Next>
struct Row {
  bool begun, more;
  const Next& next;
};
template <class Next>
__device__ __forceinline__ Row<Next> in_a_row(bool begun, bool more, const Next& next) {
  return {begun, more, next};
}
// A block by itself.
struct Alone {
  static constexpr bool begun = false, more = false;
};

// Nothing to wait for.
struct Ready {
  __device__ __forceinline__ void operator()() const {}
};

// Computes rows [m0, m1) x columns [n0, n1) (at most a block) with all threads of a team. Its operands, and what `fetch`
// reads, are there when await() has returned, which all threads call once. The sums go to
// epilogue(m, n, Pack<Sum, WIDTH>, held, live), where held = fetch(m, n) is what else the epilogue reads: it is fetched some
// turns ahead, at first while the operands come in. What is not live is not stored: so the turns have no branches, and hide each
// other's waits. Or to what ByRows has. Shared memory is free to use for others when this returns, but for what is on its way to the
// next block of a Row. A block that is begun does not call await.
template <class S, class Left, class Right, class Await, class Fetch, class Epilogue, class Blocks = Alone>
__device__ __forceinline__ void contract(char* shared, int m0, int m1, int n0, int n1,
                                         const Left& left, const Right& right, const Await& await,
                                         const Fetch& fetch, const Epilogue& epilogue, const Blocks& blocks = {}) {
  using Core = typename S::Core;
  using Sum = typename S::Sum;
  constexpr int RING = S::RING;
  const unsigned all = ptx::anew(threadIdx.x), self = S::TEAMS == 1 ? all : all % S::THREADS;
  int warp = ptx::uniform(self / 32), lane = self % 32;
  int slice = warp / S::SLICE_WARPS, member = warp % S::SLICE_WARPS;
  int warp_m = member / S::WARPS_N * S::WARP_M, warp_n = member % S::WARPS_N * S::WARP_N;
  if constexpr (S::GROUPS) warp_m = member % S::WARPS_M * 16, warp_n = member / S::WARPS_M * S::WARP_N;
  int named = 1 + slice;  // the barrier of a slice
  if constexpr (S::TEAMS > 1) {
    int team = ptx::uniform(all / S::THREADS);
    named += team, shared += team * S::TEAM_BYTES;
  }

  int thread = int(self) - slice * S::SLICE_THREADS;
  char* ring = shared + slice * (RING * S::STAGE_BYTES);
  Feed<S, typename S::Left, typename S::LeftIntake, Left> left_feed(left, m0, m1, slice, thread);
  Feed<S, typename S::Right, typename S::RightIntake, Right> right_feed(right, n0, n1, slice, thread);
  auto begin = [&](char* to) {
    left_feed.begin(to);
    right_feed.begin(to + S::LeftPanel::BYTES);
  };
  auto finish = [&](char* to) {
    left_feed.finish(to);
    right_feed.finish(to + S::LeftPanel::BYTES);
  };
  int count = slice < S::CHUNKS ? (S::CHUNKS - slice + S::SLICES - 1) / S::SLICES : 0;
  typename Core::Accumulator acc;
  Core::clear(acc);

  constexpr int END = RING * S::STAGE_BYTES;
  int to = 0, from = 0;  // stages of the ring: next to fill, next to use
  constexpr int FILL = S::EVALUATES ? RING - 1 : 0;  // turns of the main loop that fill the ring and use no chunk yet
  if (S::FOLLOWING > 0 && blocks.begun) {
    left_feed.skip(S::FOLLOWING);
    right_feed.skip(S::FOLLOWING);
    to = S::FOLLOWING * S::STAGE_BYTES;
#pragma unroll 1
    for (int s = S::FOLLOWING; s < RING - 1; ++s, to += S::STAGE_BYTES) {
      if (s < count) begin(ring + to);
      ptx::copy_async_commit();
    }
  } else if constexpr (FILL == 0 && decltype(left_feed)::WALKS && decltype(right_feed)::WALKS) {
    fill<S>(left_feed, right_feed, ring, count, await);
    to = END - S::STAGE_BYTES;
  } else {
    constexpr int LEFT = EARLY<S, typename S::Left>, RIGHT = EARLY<S, typename S::Right>;
#pragma unroll 1
    for (int s = 0; s < min_of(max_of(LEFT, RIGHT), count); ++s) {
      if (s < LEFT) left_feed.begin(ring + s * S::STAGE_BYTES);
      if (s < RIGHT) right_feed.begin(ring + s * S::STAGE_BYTES + S::LeftPanel::BYTES);
    }
    await();
#pragma unroll 1
    for (int s = FILL; s < RING - 1; ++s, to += S::STAGE_BYTES) {
      if (s < count) {
        if (s >= LEFT) left_feed.begin(ring + to);
        if (s >= RIGHT) right_feed.begin(ring + to + S::LeftPanel::BYTES);
      }
      ptx::copy_async_commit();
    }
  }

  // This thread's outputs are vectors of the block in order: neighbouring threads store neighbours.
  using Held = decltype(fetch(0, 0));
  constexpr int ACROSS = S::ACROSS, TOTAL = S::ROWS * ACROSS;
  constexpr int ROUNDS = ceil_div(TOTAL, S::FINISHERS);
  constexpr int MOST = same<Held, Nothing> ? (ROUNDS > 8 ? MANY_TURNS : MOST_TURNS) : max_of(1, MOST_HELD / int(sizeof(Held)));
  constexpr int AHEAD = even_turns(ROUNDS, MOST);  // turns of which the operands are on their way at once
  Held held[AHEAD];
  const int vectors_end = BY_ROWS<Epilogue> ? n1 - (n1 - n0) % S::WIDTH : n1;
  auto mine = [&](int round) {
    unsigned e = round * S::FINISHERS + self;
    int m = int(e / ACROSS), n = int(e % ACROSS) * S::WIDTH;
    if constexpr (S::STEADY_COLUMNS)
      m = round * (S::FINISHERS / ACROSS) + int(self / ACROSS), n = int(self % ACROSS) * S::WIDTH;
    bool whole = TOTAL % S::FINISHERS == 0 && ROUNDS % AHEAD == 0;
    bool exists = (whole || e < TOTAL) && (S::FINISHERS == S::THREADS || self < S::FINISHERS);
    constexpr bool CHECK_COLUMNS = S::Right::CHECK_ROWS || BY_ROWS<Epilogue>;  // by rows: the last vector may be a part of one
    bool inside = (!S::Left::CHECK_ROWS || m0 + m < m1) && (!CHECK_COLUMNS || n0 + n < vectors_end);
    bool live = exists && inside;
    return Place{live ? m : 0, live ? n : 0, live};  // another's place is as good for what is not stored
  };
  constexpr bool GUARDS = BY_ROWS<Epilogue>;  // a block may have no place at all
#pragma unroll
  for (int i = 0; i < AHEAD; ++i)
    if (Place p = mine(i); !GUARDS || p.live) held[i] = fetch(m0 + p.m, n0 + p.n);

  Following<S, decltype(left_feed), decltype(right_feed)> following{ring, slice, thread, left_feed, right_feed};
  constexpr bool GOES_ON = following.GOES_ON;
  if constexpr (GOES_ON) blocks.next(following);
  const int wanted = count + (GOES_ON && blocks.more ? S::FOLLOWING : 0);  // chunks, with those of a following block
#pragma unroll 1
  for (int t = -FILL; t < count; ++t) {
    if constexpr (RING == 1) {
      warps_barrier<S::SLICE_WARPS>(named);  // the chunk before is used up
      begin(ring);
      finish(ring);
      ptx::copy_async_commit();
      ptx::copy_async_wait<0>();
      warps_barrier<S::SLICE_WARPS>(named);
      Core::step(acc, ring, ring + S::LeftPanel::BYTES, warp_m, warp_n, lane);
      Core::finish();
    } else {
      bool full = FILL == 0 || t >= 0;
      if (full) {
        ptx::copy_async_wait<max_of(0, RING - 2 - S::BEHIND)>();
        if constexpr (S::GROUPS) ptx::fence_async();
        if constexpr (S::GROUPS && FILL == 0 && !S::WHOLE && S::BEHIND == 0) Core::finish();
        warps_barrier<S::SLICE_WARPS>(named);  // chunk t is in, chunk t - 1 - BEHIND is used up
      }
      bool refills = !S::WHOLE && t >= S::BEHIND - FILL;
      if constexpr (GOES_ON) {
        bool ends = t + RING - 1 - S::BEHIND == count;
        left_feed.change(ends, following.left_feed);
        right_feed.change(ends, following.right_feed);
      }
      bool more = refills && t + RING - 1 - S::BEHIND < wanted;
      // Tensor cores that read the ring themselves are at work while the next chunk is asked for, and waited for.
      if (S::GROUPS && full) Core::step(acc, ring + from, ring + from + S::LeftPanel::BYTES, warp_m, warp_n, lane);
      if (S::GROUPS && FILL > 0 && full) Core::finish();  // ptxas serialises wgmma where much else goes on meanwhile (C7514)
      if constexpr (S::BEHIND > 0) Core::template finish<S::BEHIND>();
      if (more) begin(ring + to);
      ptx::copy_async_commit();
      if (!S::GROUPS && full) Core::step(acc, ring + from, ring + from + S::LeftPanel::BYTES, warp_m, warp_n, lane);
      if (more) finish(ring + to);
      if (refills) to = to + S::STAGE_BYTES == END ? 0 : to + S::STAGE_BYTES;
      if (full) from = from + S::STAGE_BYTES == END ? 0 : from + S::STAGE_BYTES;
    }
  }
  if constexpr (S::GROUPS && FILL == 0 && RING > 1) Core::finish();

  // Every slice arrives equally often: compute-sanitizer's racecheck orders threads by how many barriers they passed.
  if constexpr (S::SLICE_WARPS > 1 && S::CHUNKS % S::SLICES != 0) {
    for (int t = count * (RING == 1 ? 2 : 1); t < ceil_div(S::CHUNKS, S::SLICES) * (RING == 1 ? 2 : 1); ++t)
      warps_barrier<S::SLICE_WARPS>(named);
  }

  if constexpr (!GOES_ON) ptx::copy_async_wait<0>();
  S::barrier();  // all rings are used up: the sums may overwrite them
  if constexpr (S::FOLLOWING > 0 && !GOES_ON) {
    if (blocks.more) blocks.next(following);
  }
  Sum* sums = reinterpret_cast<Sum*>(shared + S::SUMS_AT);
  constexpr int SLICE_SUMS = S::BLOCK_M * S::SUM_PITCH;
#pragma unroll
  for (int i = 0; i < Core::FRAGMENTS; ++i) {
    int at = slice * SLICE_SUMS + (warp_m + Core::row(i, lane)) * S::SUM_PITCH + warp_n + Core::column(i, lane);
    if (Core::keeps(i, lane)) store(sums + at, Core::fragment(acc, i));
  }
  S::barrier();
#pragma unroll 1
  for (int round = 0; round < ROUNDS; round += AHEAD) {
    Pack<Sum, S::WIDTH> totals[AHEAD];  // by rows: no load of sums is moved before a store into a cell
    if constexpr (BY_ROWS<Epilogue>) {
#pragma unroll
      for (int i = 0; i < AHEAD; ++i)
        if (Place p = mine(round + i); p.live) totals[i] = total<S, S::WIDTH>(sums + p.m * S::SUM_PITCH + p.n);
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if (Place p = mine(round + i); !GUARDS || p.live) {
        Sum* at = sums + p.m * S::SUM_PITCH + p.n;
        if constexpr (GUARDS)
          epilogue.vectors(m0 + p.m, n0 + p.n, totals[i], held[i], true, reinterpret_cast<char*>(at));
        else
          epilogue(m0 + p.m, n0 + p.n, total<S, S::WIDTH>(at), held[i], p.live);
      }
      if (round + AHEAD < ROUNDS)
        if (Place p = mine(round + AHEAD + i); !GUARDS || p.live) held[i] = fetch(m0 + p.m, n0 + p.n);
    }
  }
  if constexpr (BY_ROWS<Epilogue>) finish_rows<S>(sums, m0, m1, n0, n1, epilogue);
  S::barrier();
}

template <class S, class Left, class Right, class Epilogue>
__device__ __forceinline__ void contract(char* shared, int m0, int m1, int n0, int n1,
                                         const Left& left, const Right& right,
                                         const Epilogue& epilogue) {
  contract<S>(
      shared, m0, m1, n0, n1, left, right, Ready{}, [](int, int) { return Nothing{}; },
      [&](int m, int n, const Pack<typename S::Sum, S::WIDTH>& sums, Nothing, bool live) {
        if (live) epilogue(m, n, sums);
      });
}

}  // namespace mt
